"""Pages of a small internet as `web_fetch` reads them."""
