# Canaille, an identity provider, from its package and the lock of our tests.
FROM python:3.13-slim-bookworm
WORKDIR /issuer
COPY tests/providers/requirements.lock ./
RUN pip install --no-cache-dir --require-hashes --requirement requirements.lock
COPY deploy/compose/issuer.py ./
USER 65532:65532
CMD ["python", "issuer.py"]
