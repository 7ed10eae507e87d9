"""What the whole data path uses: buffers, admission, turns of the event loop, rate-limited log lines."""
