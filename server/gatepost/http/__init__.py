"""HTTP: connections and their deadlines, the checks at the edge, reading bodies, responses."""
