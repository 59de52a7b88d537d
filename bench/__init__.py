"""What a call costs: Gatepost beside a bare server and its peers, in one interleaved run."""
