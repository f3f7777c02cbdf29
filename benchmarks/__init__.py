"""Measurements and questions: research code that is not part of the installed package.

Each module is a command, `python -m benchmarks.NAME --help`.
"""
