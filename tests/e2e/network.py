"""Hosts for tests: network namespaces connected by a switch, and a stand-in for ssh."""
import contextlib
import os
import pathlib
import subprocess
import tempfile

NAME = f"pw{os.getpid() % 100000}"
SWITCH = NAME + "s"
HOSTS = {f"10.77.0.{number}": f"{NAME}h{number}" for number in (1, 2, 3)}


def sh(command):
    subprocess.run(command, shell=True, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def make_network():
    """Makes a switch, and three hosts connected to it."""
    sh(f"ip netns add {SWITCH}")
    sh(f"ip -n {SWITCH} link add name sw0 type bridge && ip -n {SWITCH} link set sw0 up")
    for number, (address, host) in enumerate(HOSTS.items()):
        sh(f"ip netns add {host} && ip -n {host} link set lo up")
        sh(f"ip -n {host} link add name eth0 type veth peer name port{number} netns {SWITCH}")
        sh(f"ip -n {SWITCH} link set port{number} master sw0 up")
        sh(f"ip -n {host} addr add {address}/24 dev eth0 && ip -n {host} link set eth0 up")


def remove_network():
    for name in (SWITCH, *HOSTS.values()):
        subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)


def can_make_network():
    try:
        make_network()
        sh(f"ip netns exec {next(iter(HOSTS.values()))} unshare --uts --mount sh -c "
           "'hostname x && mount -t tmpfs tmpfs /dev/shm'")
        return True
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        remove_network()


# A host has its own name, and memory that others do not see.
AGENT = """#!/bin/sh
case "$1" in {cases} esac
shift
exec ip netns exec $host unshare --uts --mount \
  sh -c 'hostname "$0" && {mounts} && exec sh -c "$*"' $name "$@"
"""


def write_agent(path, names=None):
    """Writes a program that runs a command on a host and is called like ssh. Hosts have the names
    of their namespaces and are reached by address, or have names and know each other by them."""
    mounts = "mount -t tmpfs tmpfs /dev/shm"
    if names:
        table = path.with_name("hosts")
        table.write_text("127.0.0.1 localhost\n" +
                         "".join(f"{a} {n}\n" for a, n in zip(HOSTS, names)))
        mounts += f" && mount --bind {table} /etc/hosts"
    cases = " ".join(f"{called}) host={host} name={name};;" for called, host, name in
                     zip(names or HOSTS, HOSTS.values(), names or HOSTS.values()))
    path.write_text(AGENT.format(cases=cases, mounts=mounts))
    path.chmod(0o755)


@contextlib.contextmanager
def named_hosts(names):
    """Makes the network; yields a prefix for commands on the first host, and mpirun's environment."""
    with tempfile.TemporaryDirectory() as folder:
        agent = pathlib.Path(folder) / "agent"
        write_agent(agent, names)
        make_network()
        try:
            yield [str(agent), names[0]], {"OMPI_MCA_plm_rsh_agent": str(agent),
                                           "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
                                           "OMPI_MCA_btl": "tcp,self"}
        finally:
            remove_network()
