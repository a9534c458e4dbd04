# SPDX-License-Identifier: Apache-2.0
"""The table of failure classes that the output of a program shows, and what to do about every class.

`SIGNS` is the only table of such texts. `core.output` finds the line of an output that shows the failure.
"""

import re

from msgspec import Struct

from trainwright.model.verdict import FailureClass


class Sign(Struct, frozen=True, gc=False):
    """A pattern in a line of the output of a program that ended with an error."""

    failure_class: FailureClass
    pattern: re.Pattern[str]
    action: str
    #: The sign counts only with one of these exit codes; empty: with any code.
    codes: frozenset[int] = frozenset()
    #: The line only reports the failure of another process, whose own output says more. It counts if no other line has
    #: a sign.
    report: bool = False


def _sign(failure_class: FailureClass, *patterns: str, action: str = "", report: bool = False, codes: str = "") -> Sign:
    pattern = re.compile("|".join(patterns), re.IGNORECASE)
    return Sign(failure_class, pattern, action or ACTIONS[failure_class], frozenset(map(int, codes.split())), report)


#: What to do about each class, unless a sign in the output has its own action.
ACTIONS = {
    FailureClass.NODE_LOST: "check the node; nothing in the program caused this",
    FailureClass.DEVICE_FAILED: "have the GPUs of the node checked; nothing in the program caused this",
    FailureClass.PREEMPTED: "use a higher priority, or let the job restart when there is room",
    FailureClass.EVICTED: "request the memory and disk that the replica really uses, so that the node reserves them",
    FailureClass.DISRUPTED: "nothing in the program caused this; a drained node needs `kubectl uncordon`",
    FailureClass.DELETED: "find out who deleted the pod; nothing in the program caused this",
    FailureClass.IMAGE: "check the name and tag of the image, and imagePullSecrets if the registry needs a password",
    FailureClass.MISSING_OBJECT: "create the missing object, or correct its name in the manifest",
    FailureClass.OUT_OF_MEMORY: "raise resources.limits.memory (--memory-per-replica of `trainwright run`), or use less"
    " memory",
    FailureClass.DEVICE_OUT_OF_MEMORY: "use a smaller batch, fewer parameters per device, or a device with more memory",
    FailureClass.SHARED_MEMORY: "the volume /dev/shm was probably full: mount an emptyDir with `medium: Memory` and a"
    " larger `sizeLimit` there, or start fewer data loader workers",
    FailureClass.DISK_FULL: "free some space, or use a larger volume (for the state folder of `trainwright run`:"
    " TRAINWRIGHT_STATE)",
    FailureClass.PORT_IN_USE: "use another port; replicas that share the network of a machine (hostNetwork, --runtime"
    " process) need different ports, and with `--runtime sandbox` each replica has its own network",
    FailureClass.NAME_RESOLUTION: "check the host name; replicas have names only if the job has services, and on one"
    " machine only with `--runtime sandbox`",
    FailureClass.RENDEZVOUS: "look for the replica that failed or did not start first; if all replicas ran, check the"
    " network and the ports between them, or raise the timeout",
    FailureClass.IMPORT_ERROR: "install the Python module in the image, or on this machine for the Python of the"
    " command",
    FailureClass.COMMAND_NOT_FOUND: "check the spelling of the command, and that it is installed in the image or on"
    " this machine",
    FailureClass.KILLED: "find out who sent the signal; the kernel sends SIGKILL if the machine runs out of memory"
    " (see `dmesg` on the node)",
    FailureClass.CRASHED: "look for a defect in native code: a library for another processor, a driver, an extension",
    FailureClass.PROGRAM_ERROR: "read the log of the replica",
    FailureClass.QUOTA: "free some of the quota, ask for more, or request less",
    FailureClass.REFUSED: "correct what the API server refuses",
    FailureClass.UNSCHEDULABLE: "free or add resources, or request less",
    FailureClass.DEADLINE: "raise the deadline, or make the job faster",
}

#: The name of a Python exception, as the last line of a traceback begins with it: `ValueError`, `socket.gaierror`.
EXCEPTION = re.compile(
    r"(?:[a-zA-Z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Expired)(?::|$)|(?:[a-z_]\w*\.)+[a-z]*error(?::|$)"
)

#: The report of a timeout. A program that reports its settings writes `timeout=30` or `timeout 30 s` instead.
_TIMED_OUT = r"(?:timed out|timeout(?:ed)?(?: after\b|!|\.?$))"

#: Signs in the output of a program. If a line shows several signs, the first of them counts.
SIGNS: tuple[Sign, ...] = (
    _sign(
        FailureClass.KILLED,
        r"^its (?:liveness|startup) probe failed",
        action="find out why the program does not answer its probe, or raise failureThreshold, periodSeconds or"
        " timeoutSeconds of the probe",
    ),
    _sign(
        FailureClass.DEVICE_FAILED,
        r"(?<!\b0 )(?<!\bno )uncorrectable ECC error(?!s?(?: counts?)?\s*[:=]\s*0\b)",
        r"CUDA_ERROR_ECC_UNCORRECTABLE|GPU is lost|fallen off the bus",
    ),
    _sign(
        FailureClass.DEVICE_OUT_OF_MEMORY,
        r"(?:CUDA|HIP|NPU|XPU)\S*(?: (?:driver |runtime )?error(?: \(\d+\))? ?:)? out of memory",
        r"torch\.(?:cuda\.)?OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY",
        r"RESOURCE_EXHAUSTED: .*(?:out of memory|OOM)|OOM when allocating|out of memory error on GPU",
        r"Cuda failure \S* ?'?out of memory|CUBLAS_STATUS_ALLOC_FAILED",
    ),
    _sign(
        FailureClass.SHARED_MEMORY,
        r"\bbus error\b|insufficient shared memory|out of shared memory",
        r"unable to (?:open|write|resize|mmap).* shared memory|unable to write to file </torch",
        r"(?:creating|attaching to) shared memory segment|failed to extend /dev/shm|no space left on device.*/dev/shm",
    ),
    _sign(
        FailureClass.OUT_OF_MEMORY,
        r"^(?:\w+\.)*MemoryError|\bstd::bad_alloc|cannot allocate memory|_ArrayMemoryError",
        r"can't allocate memory: you tried|java\.lang\.OutOfMemoryError|^fatal error: runtime: out of memory",
    ),
    _sign(
        FailureClass.KILLED,
        r"is killed by signal: (?:Killed|Terminated)",
        action="the kernel kills data loader workers if the container runs out of memory: raise"
        " resources.limits.memory, or start fewer workers",
    ),
    _sign(
        FailureClass.IMPORT_ERROR,
        r"(?:ModuleNotFoundError|ImportError): |No module named '?[\w.]+'?$",
    ),
    _sign(FailureClass.PORT_IN_USE, r"address (?:is )?already in use|EADDRINUSE"),
    _sign(FailureClass.DISK_FULL, r"no space left on device|disk quota exceeded"),
    _sign(
        FailureClass.NAME_RESOLUTION,
        r"name or service not known|(?:temporary )?failure in name resolution|nodename nor servname",
        r"could not resolve host|no address associated with hostname|name does not resolve|UnknownHostException",
    ),
    _sign(
        FailureClass.RENDEZVOUS,
        r"rendezvous\w*(?:timeout|closed|connection)error|wait timeout after \d+ ?ms",
        r"(?:timed|time) ?out after .*(?:waiting for|trying to connect)|failed to connect to (?:any|all) ",
        r"watchdog caught collective operation timeout|NCCL error\W+.*(?:remote|network|system error|internal error)",
        r"nccl(?:System|Remote)Error|connectFullMesh failed|gloo.*(?:connect timeout \[|closed|reset by peer)",
        rf"(?:gloo.*|\bstore\b.*|socket ){_TIMED_OUT}|timed out.*\b(?:store|barrier)\b",
        r"barrier.*timed out|DEADLINE_EXCEEDED|broken ?pipe|HorovodInternalError",
        r"^(?:TimeoutError|socket\.timeout): timed out|no route to host|(?:network|host) is unreachable",
        r"connect(?:ion)? ?(?:refused|reset|closed|timed out)",
    ),
    _sign(
        FailureClass.COMMAND_NOT_FOUND,
        r"(?:^|: )(?:command )?not found$|can't open file '.*': \[Errno 2\]|error while loading shared libraries",
    ),
    _sign(
        FailureClass.COMMAND_NOT_FOUND,
        r": (?:no such file or directory|permission denied|is a directory|exec format error)$|cannot execute",
        codes="126 127",
    ),
    _sign(
        FailureClass.KILLED,
        r"exitcode *: -(?:9|15)\b|died with <Signals\.SIG(?:KILL|TERM)",
        report=True,
    ),
    _sign(
        FailureClass.CRASHED,
        r"exitcode *: -(?:4|6|8|11)\b|died with <Signals\.SIG(?:SEGV|ABRT|ILL|FPE)",
        report=True,
    ),
    _sign(
        FailureClass.PROGRAM_ERROR,
        r"(?:^|\.)(?:ChildFailedError|CalledProcessError|Process\w+Exception|BrokenProcessPool)(?::|$)",
        r"failed \(exitcode: \d|failed with return code \d|DataLoader worker \(pid.*\) exited unexpectedly",
        r"^LAUNCH ERROR|^(?:g?make|srun): |^mpirun (?:noticed|detected)",
        report=True,
    ),
    _sign(
        FailureClass.PROGRAM_ERROR,
        rf"^(?-i:{EXCEPTION.pattern})|^(?:\S+: )?(?:fatal(?: python)?(?: error)?|panic|error)\s*[:!]",
        r"^thread '.*' panicked at|^Exception in thread \"",
        r"^[\d\-:.,/TZ ]*[\[<]?(?-i:ERROR|FATAL|CRITICAL)\b[\]>]?(?: -|:| )",
        r"^\S+: .*: (?:no such file or directory|permission denied|is a directory|not a directory)$",
        action="read the lines above this error in the log",
    ),
)

#: Every line with a sign contains one of these words, in lower case. Most lines of a log contain none of them, and then
#: the slow comparison with all patterns is left out.
WORDS = (
    *(
        "error",
        "exception",
        "interrupt",
        "exit",
        "expired",
        "fatal",
        "panic",
        "critical",
        "fail",
        "killed",
        "died",
        "broken",
    ),
    *("memory", "oom", "bad_alloc", "bus", "gpu", "no module", "in use", "eaddrinuse", "space", "quota", "unknownhost"),
    *("name or service", "name res", "nodename", "resolve", "hostname", "timed out", "timeout", "time out", "deadline"),
    *("nccl", "gloo", "connect", "pipe", "route", "unreachable", "not found", "no such", "denied", "directory"),
    *("can't open", "cannot execute", "shared librar", "alloc_failed", "make", "mpirun", "srun"),
)
