"""One file per engine that can continue a prompt with and without a draft."""
