"""Environment variables for client commands. ``sluice run`` ignores them."""

from typing import Final

ENV_URL, ENV_TOKEN, ENV_TOKEN_FILE = "SLUICE_URL", "SLUICE_TOKEN", "SLUICE_TOKEN_FILE"
ENV_CA_FILE, ENV_PROFILE = "SLUICE_CA_FILE", "SLUICE_PROFILE"
CLIENT_VARIABLES: Final = (ENV_URL, ENV_TOKEN, ENV_TOKEN_FILE, ENV_CA_FILE, ENV_PROFILE)
