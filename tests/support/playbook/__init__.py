"""What session tests are written with: frames, recorded connections, and a playbook."""
