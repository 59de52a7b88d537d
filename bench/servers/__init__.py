"""The servers that Gatepost is compared with, each as small as a user would write it."""
