# Runs in the machine, as root under systemd: the tests, and their results onto
# the third disk. lab.py made the second one, /lab.
set -u
cd /lab || exit 1
echo "kernel $(uname -r), $(grep cgroup2 /proc/self/mounts), in $(cat /proc/self/cgroup)"
. /lab/environment
export CORDON_RUNTIMES PYTHONDONTWRITEBYTECODE=1 LANG=C.UTF-8 HOME=/root
# Unit tests know the programs that they start by the path of the build.
mkdir -p "$LAB_TOP" && mount --bind /lab "$LAB_TOP" && cd "$LAB_TOP" || exit 1
export CORDON_ROOT=$LAB_TOP/build/root

# As on many hosts, whoever dumps core starts a program of root's: tests/lab
# looks for what it wrote.
mkdir -p /run/lab/results
echo '|/bin/sh /lab/tests/lab/core-handler %P %u' > /proc/sys/kernel/core_pattern

if [ -e script ]; then
  sh script
  exit
fi

# SIGINT: pytest writes its report then, too.
xargs -a /lab/tests.txt -d '\n' timeout --signal=INT --kill-after=30 "$LAB_SECONDS" \
  python3 -m pytest -p no:cacheprovider --color=no -v --tb=short --durations=15 \
  --junit-xml /run/lab/results/junit.xml
echo $? > /run/lab/results/status

journalctl -b --no-pager > /run/lab/results/journal.log 2> /dev/null
tail -c 4000000 /run/lab/results/journal.log > /run/lab/results/journal.tail
mv /run/lab/results/journal.tail /run/lab/results/journal.log
tar -C /run/lab/results -cf /dev/vdc .
sync
