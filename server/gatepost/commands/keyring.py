"""`gatepost keyring`: make and rotate the secrets that sign what the server hands out."""

from pathlib import Path

import click

from gatepost.keyring import KeyRingError, create, key_ids, rotate

FILE = click.Path(dir_okay=False, path_type=Path)
DEFAULT_FILE = "keyring.json"


@click.group()
def keyring() -> None:
    """Make and rotate the key ring, the file that `[keys] ring` names."""


@keyring.command()
@click.argument("path", type=FILE, default=DEFAULT_FILE)
def new(path: Path) -> None:
    """Write a new key ring to PATH (keyring.json), readable by its owner only."""
    try:
        key_id = create(path)
    except KeyRingError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f'{path} holds the key {key_id}; set [keys] ring = "file:{path}".')


@keyring.command("rotate")
@click.argument("path", type=FILE, default=DEFAULT_FILE)
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="How many older keys still verify and open what they signed and sealed.",
)
def rotate_(path: Path, keep: int) -> None:
    """
    Put a new key in front of PATH (keyring.json); older keys still verify.

    Running servers take it up at SIGHUP, or when they first meet what it signed. What tenants keep
    secret is sealed by these keys too: run `gatepost secrets rotate` after each rotation, before a
    key that has sealed some falls out of the ring.
    """
    try:
        before = key_ids(path)
        key_id = rotate(path, keep=keep)
        after = key_ids(path)
    except KeyRingError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{path} signs with the key {key_id} now.")
    click.echo("Tenants' secrets: `gatepost secrets rotate` seals them with it.")
    for gone in [one for one in before if one not in after]:
        click.echo(f"The key {gone} is gone, and so is every secret that only it opens.", err=True)
    if len(after) > keep:
        click.echo(
            f"The next rotation drops the key {after[-1]}: seal the secrets anew before.", err=True
        )
