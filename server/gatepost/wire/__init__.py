"""What uvicorn leaves open between the socket and the application: deadlines and limits."""
