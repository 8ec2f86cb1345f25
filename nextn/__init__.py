"""nextn moves models with multi-token-prediction heads from Hugging Face to GGUF."""

__version__ = "0.1.0"
