"""Files: the only room of the services that touches a disk.

Whole operations, so that each can be made to fail.

    files.py         the door to the disk, and what a simulator replaces
    safetensors.py   the format parameters are kept in
    rundir.py        the folder of one run
"""
