"""Speed against the bare servers, as ratios in one run: `make bench`."""
