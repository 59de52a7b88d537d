"""The record of what happened: who called what, who decided, what was refused, cut off, erased."""
