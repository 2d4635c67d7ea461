# SPDX-License-Identifier: MIT
"""python -m tessera.export"""
import sys

from .command import main

sys.exit(main())
