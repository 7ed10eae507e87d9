"""Back pressure: credit between the stages of a message's way, which of them is the bottleneck, and alarms.

``credit`` has the stages and their credit, ``diagnosis`` says which one the others wait for, ``alarms`` says when
memory or disk runs short, and ``machine`` reads the figures for that. All but ``machine`` do no I/O and are given the
time.
"""
