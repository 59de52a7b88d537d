"""`gatepost keyring`: create and rotate the signing and encryption keys."""

from pathlib import Path

import click

from gatepost.secrets.keyring import KeyRingError, create, key_ids, rotate

FILE = click.Path(dir_okay=False, path_type=Path)
DEFAULT_FILE = "keyring.json"


@click.group()
def keyring() -> None:
    """Create and rotate the key ring, the file named by `[keys] ring`."""


@keyring.command()
@click.argument("path", type=FILE, default=DEFAULT_FILE)
def new(path: Path) -> None:
    """Create a key ring at PATH (default: keyring.json), readable only by its owner."""
    try:
        key_id = create(path)
    except KeyRingError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f'Created {path} with key {key_id}. Set [keys] ring = "file:{path}".')


@keyring.command("rotate")
@click.argument("path", type=FILE, default=DEFAULT_FILE)
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="How many older keys to keep. Older keys still verify signatures and decrypt.",
)
def rotate_(path: Path, keep: int) -> None:
    """
    Add a new signing key to PATH (default: keyring.json). Older keys still verify.

    Running servers load the new key at SIGHUP or when they first see a signature made with it.
    Tenants' secrets are encrypted with these keys too. Run `gatepost secrets rotate` after each
    rotation, before the key ring drops a key that encrypted secrets.
    """
    try:
        before = key_ids(path)
        key_id = rotate(path, keep=keep)
        after = key_ids(path)
    except KeyRingError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{path} now signs with key {key_id}.")
    click.echo("Run `gatepost secrets rotate` to encrypt tenants' secrets with the new key.")
    for dropped in [before_key for before_key in before if before_key not in after]:
        click.echo(
            f"Key {dropped} was dropped. Secrets that only this key decrypts are lost.", err=True
        )
    if len(after) > keep:
        click.echo(
            f"The next rotation drops key {after[-1]}. Run `gatepost secrets rotate` first.",
            err=True,
        )
