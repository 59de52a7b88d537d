#!/bin/sh
# Makes what compose.yaml needs, once: certificates below tls/, and .env with secrets.
set -eu
cd "$(dirname "$0")"
if [ -e .env ] || [ -e tls ]; then
    echo "There is a .env or a folder tls already; remove both to begin again." >&2
    exit 1
fi
umask 077
secret() { openssl rand -base64 32 | tr '+/' '-_' | tr -d '=\n'; }
{
    echo "POSTGRES_PASSWORD=$(secret)"
    echo "VALKEY_PASSWORD=$(secret)"
    echo "ISSUER_SECRET=$(secret)"
    echo "ISSUER_PASSWORD=$(secret)"
    # What `gatepost keyring new` writes.
    echo "KEY_RING='{\"keys\":[{\"id\":\"$(openssl rand -hex 4)\",\"secret\":\"$(secret)\",\"created\":$(date +%s)}]}'"
} >.env
mkdir tls
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 \
    -subj "/CN=Gatepost on this machine" -addext basicConstraints=critical,CA:TRUE,pathlen:0 \
    -addext keyUsage=critical,keyCertSign -keyout tls/ca.key -out tls/ca.crt 2>/dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=mcp.gatepost.test" \
    -keyout tls/tls.key -out tls/tls.csr 2>/dev/null
printf '%s\n' 'subjectAltName = DNS:mcp.gatepost.test, DNS:id.gatepost.test' \
    'keyUsage = critical, digitalSignature' 'authorityKeyIdentifier = keyid' >tls/extensions
openssl x509 -req -in tls/tls.csr -CA tls/ca.crt -CAkey tls/ca.key -CAcreateserial -days 825 \
    -extfile tls/extensions -out tls/tls.crt 2>/dev/null
rm tls/tls.csr tls/extensions
chmod 755 tls
chmod 644 tls/ca.crt tls/tls.crt
echo "Run: docker compose up --build --wait"
