"""Publishing a run with its model card, and getting one back: the Hugging Face hub, or a folder.

run directory -> checked files of known kinds + card -> repository -> the same files -> model
"""

from imel.hub.card import model_card
from imel.hub.transfer import load_from_hub, pull_from_hub, push_to_hub

__all__ = ["load_from_hub", "model_card", "pull_from_hub", "push_to_hub"]
