"""Tools of session tests: frames, recorded connections, and a playbook."""
