"""The explorer: a local web page over a run's memory, on which every action is taken apart."""

from pathlib import Path

DEMO = Path(__file__).with_name("demo")
"""A small trained run that ships with the package; `make demo` makes it anew."""
