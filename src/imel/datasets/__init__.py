"""Experience that leaves imel and comes in: Minari, Parquet, the projector, warm starts.

memory, played episodes -> columns -> files -> columns -> warm_start -> memory
"""

from imel.datasets.columns import Columns, memory_columns, write_parquet, write_projector
from imel.datasets.minari_files import write_minari
from imel.datasets.played import play_episodes, record_episodes
from imel.datasets.warm_start import Dataset, Episode, read_dataset, warm_start

__all__ = [
    "Columns",
    "Dataset",
    "Episode",
    "memory_columns",
    "play_episodes",
    "read_dataset",
    "record_episodes",
    "warm_start",
    "write_minari",
    "write_parquet",
    "write_projector",
]
