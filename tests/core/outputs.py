# SPDX-License-Identifier: Apache-2.0
"""Output of real programs that failed, each with the class that it shows.

Lines of Python, shells and the C library were captured from jobs that `e2e_broken` runs. Frameworks are not installed
here: the comment names the project whose message a line is. Most of these lines are from logs that users have
published; some follow the wording that the project is known for, and were not compared with a log.
"""

from trainwright.model.verdict import FailureClass as Class

#: One line, and its class. `tests/core/test_diagnose.py` checks that every sign has a line here.
LINES = {
    # The node agent of Trainwright.
    "its liveness probe failed: exit code 1: no heartbeat": Class.KILLED,
    # CUDA and TensorFlow: a GPU has failed.
    "RuntimeError: CUDA error: uncorrectable ECC error encountered": Class.DEVICE_FAILED,
    "failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC": Class.DEVICE_FAILED,
    "GPU check: 10 uncorrectable ECC errors": Class.DEVICE_FAILED,
    "Uncorrectable ECC error count: 3": Class.DEVICE_FAILED,
    # PyTorch, TensorFlow, Paddle, NCCL: a GPU has no memory left.
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.": Class.DEVICE_OUT_OF_MEMORY,
    "RuntimeError: CUDA error: out of memory": Class.DEVICE_OUT_OF_MEMORY,
    "torch.AcceleratorError: CUDA error: out of memory": Class.DEVICE_OUT_OF_MEMORY,
    "RuntimeError: CUDA driver error: out of memory": Class.DEVICE_OUT_OF_MEMORY,
    "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/THCGeneral.cpp:50": (
        Class.DEVICE_OUT_OF_MEMORY
    ),
    "ResourceExhaustedError: OOM when allocating tensor with shape[16,12,512,512]": Class.DEVICE_OUT_OF_MEMORY,
    "Out of memory error on GPU 0. Cannot allocate 98.000244MB memory on GPU 0": Class.DEVICE_OUT_OF_MEMORY,
    "ng3:3063028 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'": Class.DEVICE_OUT_OF_MEMORY,
    # PyTorch and NCCL: /dev/shm is full.
    "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).": (
        Class.SHARED_MEMORY
    ),
    "RuntimeError: DataLoader worker (pid 46794) is killed by signal: Bus error. It is possible that dataloader's"
    " workers are out of shared memory.": Class.SHARED_MEMORY,
    "misc/shmutils.cc:112 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-KWfVyt (size 59)": (
        Class.SHARED_MEMORY
    ),
    "NCCL WARN Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left on device (28)": (
        Class.SHARED_MEMORY
    ),
    "OSError: [Errno 28] No space left on device: '/dev/shm/x'": Class.SHARED_MEMORY,
    "Bus error": Class.SHARED_MEMORY,
    # Python, C++, numpy, PyTorch, Java, Go: no memory left.
    "MemoryError": Class.OUT_OF_MEMORY,
    "OSError: [Errno 12] Cannot allocate memory": Class.OUT_OF_MEMORY,
    "terminate called after throwing an instance of 'std::bad_alloc'": Class.OUT_OF_MEMORY,
    "numpy.core._exceptions.MemoryError: Unable to allocate 7.28 TiB for an array": Class.OUT_OF_MEMORY,
    "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB for an array": Class.OUT_OF_MEMORY,
    "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
    " to allocate 80000000000 bytes.": Class.OUT_OF_MEMORY,
    'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space': Class.OUT_OF_MEMORY,
    "fatal error: runtime: out of memory": Class.OUT_OF_MEMORY,
    # PyTorch: the kernel killed a data loader worker.
    "RuntimeError: DataLoader worker (pid 27598) is killed by signal: Killed. ": Class.KILLED,
    # Python.
    "ModuleNotFoundError: No module named 'numpy_of_tomorrow'": Class.IMPORT_ERROR,
    "ModuleNotFoundError: No module named 'json.fast'; 'json' is not a package": Class.IMPORT_ERROR,
    "ImportError: cannot import name 'fast_loads' from 'json' (/usr/lib/python3.11/json/__init__.py)": (
        Class.IMPORT_ERROR
    ),
    "/usr/bin/python3: No module named no_such_trainer": Class.IMPORT_ERROR,
    "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory": Class.IMPORT_ERROR,
    # Python, PyTorch, NCCL.
    "OSError: [Errno 98] Address already in use": Class.PORT_IN_USE,
    "OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', 23471): address already in use": (
        Class.PORT_IN_USE
    ),
    "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false,"
    " code: -98, name: EADDRINUSE, message: address already in use": Class.PORT_IN_USE,
    "include/socket.h:333 NCCL WARN Call to bind failed : Address already in use": Class.PORT_IN_USE,
    # Python, dd.
    "OSError: [Errno 28] No space left on device": Class.DISK_FULL,
    "dd: error writing '/data/x': No space left on device": Class.DISK_FULL,
    "OSError: [Errno 122] Disk quota exceeded": Class.DISK_FULL,
    # The C library, curl, PyTorch.
    "socket.gaierror: [Errno -2] Name or service not known": Class.NAME_RESOLUTION,
    "socket.gaierror: [Errno -3] Temporary failure in name resolution": Class.NAME_RESOLUTION,
    "curl: (6) Could not resolve host: data.invalid": Class.NAME_RESOLUTION,
    "[W socket.cpp:601] [c10d] The IPv6 network addresses of (worker-0, 29500) cannot be retrieved (gai error: -2 -"
    " Name or service not known).": Class.NAME_RESOLUTION,
    # Python, PyTorch, NCCL, Gloo, TensorFlow, Paddle, Horovod.
    "ConnectionRefusedError: [Errno 111] Connection refused": Class.RENDEZVOUS,
    "ConnectionResetError: [Errno 104] Connection reset by peer": Class.RENDEZVOUS,
    "BrokenPipeError: [Errno 32] Broken pipe": Class.RENDEZVOUS,
    "TimeoutError: timed out": Class.RENDEZVOUS,
    "TimeoutError: [Errno 110] Connection timed out": Class.RENDEZVOUS,
    "OSError: [Errno 113] No route to host": Class.RENDEZVOUS,
    "RuntimeError: Socket Timeout": Class.RENDEZVOUS,
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for"
    " recv operation to complete": Class.RENDEZVOUS,
    "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError": Class.RENDEZVOUS,
    "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.": (
        Class.RENDEZVOUS
    ),
    "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to"
    " (172.17.0.9, 46229).": Class.RENDEZVOUS,
    "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /": Class.RENDEZVOUS,
    "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key:"
    " store_based_barrier_key:1 (world_size=2, worker_count=1, timeout=0:30:00)": Class.RENDEZVOUS,
    "[rank0]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE)": Class.RENDEZVOUS,
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1347, remote process exited or there was"
    " a network error, NCCL version 2.18.5": Class.RENDEZVOUS,
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.": (
        Class.RENDEZVOUS
    ),
    "OSError: (External) NCCL error(6), remote process exited or there was a network error.": Class.RENDEZVOUS,
    "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:446] op.preamble. Connection closed"
    " by peer [127.0.0.1]:1234": Class.RENDEZVOUS,
    "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error": (
        Class.RENDEZVOUS
    ),
    "tensorflow.python.framework.errors_impl.UnavailableError: failed to connect to all addresses": Class.RENDEZVOUS,
    "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down": Class.RENDEZVOUS,
    # dash, bash, Python, the dynamic linker.
    "sh: 1: no-such-trainer: not found": Class.COMMAND_NOT_FOUND,
    "bash: line 1: trian: command not found": Class.COMMAND_NOT_FOUND,
    "python3: can't open file '/job/trian.py': [Errno 2] No such file or directory": Class.COMMAND_NOT_FOUND,
    "train: error while loading shared libraries: libcudart.so.12: cannot open shared object file": (
        Class.COMMAND_NOT_FOUND
    ),
    # torchrun and subprocess report how another process ended.
    "E0325 20:57:27.620000 2606 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank:"
    " 5 (pid: 2630) of binary: /opt/miniconda3/bin/python": Class.KILLED,
    "subprocess.CalledProcessError: Command '['python3', 'train.py']' died with <Signals.SIGKILL: 9>.": Class.KILLED,
    "subprocess.CalledProcessError: Command '['python3', 'train.py']' died with <Signals.SIGSEGV: 11>.": Class.CRASHED,
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ": Class.PROGRAM_ERROR,
    "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 1622990)": (
        Class.PROGRAM_ERROR
    ),
    "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly while the"
    " future was running or pending.": Class.PROGRAM_ERROR,
    "LAUNCH ERROR 2022-11-21 02:35:54,385 Container failed !!!": Class.PROGRAM_ERROR,
    "make: *** [Makefile:3: train] Error 1": Class.PROGRAM_ERROR,
    "RuntimeError: DataLoader worker (pid(s) 3216) exited unexpectedly": Class.PROGRAM_ERROR,
    # Python, coreutils, Go, Rust, logging.
    "ValueError: loss is nan at step 3": Class.PROGRAM_ERROR,
    "KeyError: 'label'": Class.PROGRAM_ERROR,
    "struct.error: unpack requires a buffer of 4 bytes": Class.PROGRAM_ERROR,
    "tensorflow.python.framework.errors_impl.InvalidArgumentError: shapes differ": Class.PROGRAM_ERROR,
    "train: error: unrecognized arguments: --learning-rat 1": Class.PROGRAM_ERROR,
    "cp: cannot stat '/no/such/weights': No such file or directory": Class.PROGRAM_ERROR,
    "FileNotFoundError: [Errno 2] No such file or directory: '/no/such/train.csv'": Class.PROGRAM_ERROR,
    "panic: runtime error: index out of range": Class.PROGRAM_ERROR,
    "thread 'main' panicked at src/main.rs:2:5:": Class.PROGRAM_ERROR,
    "2026-11-17 09:00:00,123 - ERROR - no data set": Class.PROGRAM_ERROR,
    "[ERROR] no data set": Class.PROGRAM_ERROR,
}

#: Lines that show nothing, although they contain words of errors.
HARMLESS = (
    "loss 0.31 at step 7",
    "error rate 0.12, 3 errors in 25 samples",
    "val_error: 0.31 step: 12",
    "Setting timeout to 30 s; connecting",
    "restored checkpoint 12, timeout of next one 30s",
    "INFO: socket timeout = 30 s",
    "INFO init_process_group: backend=gloo, timeout=0:30:00",
    "INFO checkpoint store: timeout 300 s",
    "GPU check: 0 uncorrectable ECC errors",
    "Uncorrectable ECC error count: 0",
    "gpu2-ru7:2144:2556 [2] NCCL INFO Channel 00 : 2[3d000] -> 3[3e000] via direct shared memory",
    "frame #6: c10d::TCPStore::TCPStore(std::string, c10d::TCPStoreOptions const&) + 0x20c (libtorch_cpu.so)",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1.",
    "saving the last metrics ... done",
)
