"""The bundled tiny Step-3.7 checkpoint (package data) and what `nextn demo` does with it."""
