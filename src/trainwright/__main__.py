# SPDX-License-Identifier: Apache-2.0
"""`python -m trainwright` is `trainwright`."""

from trainwright.cli.main import main

if __name__ == "__main__":
    main()
