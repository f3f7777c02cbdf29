"""The explorer: a local web page over a run's memory, on which every action is taken apart."""
