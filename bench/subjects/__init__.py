"""One module a library: how it is installed, filled and run. No third-party import on top."""
