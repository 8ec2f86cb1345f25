"""The hub: repositories, files read by range, and what lies around them. huggingface_hub does the talking."""
