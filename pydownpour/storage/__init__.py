"""Files: the only room of the services that touches a disk.

``files`` is the door (and what a simulator replaces), ``safetensors`` the format parameters are
kept in, ``rundir`` the folder of one run.
"""
