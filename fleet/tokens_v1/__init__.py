"""Generated from tokens.proto by `make proto`; the codec is `fleet.token_codec`."""
