# SPDX-License-Identifier: Apache-2.0
"""torchrun for `make test-torch`, also where torch 1.13 runs on Python 3.11, as in Debian 12.

There, torchrun reads its option `--redirects 0`, which is the default, as None, and every start of a process fails:
since Python 3.11 the loop over the members of a flag leaves out the member 0.
"""

from torch.distributed.elastic.multiprocessing.api import Std
from torch.distributed.run import main

if hasattr(Std, "from_str") and Std.from_str("0") is None:
    Std.from_str = classmethod(lambda cls, text: cls(int(text)))
main()
