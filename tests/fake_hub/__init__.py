"""A hub on loopback: the part of the hub's API that huggingface_hub uses, with faults on demand."""
