# SPDX-License-Identifier: MIT
# Two network namespaces as two hosts, with two ranks each; a host that is lost.
[[ $(id -u) == 0 ]] || die "namespaces: they need root"
a=tessera-a-$$ b=tessera-b-$$
ip netns add $a && cleanup+=("ip netns del $a")
ip netns add $b && cleanup+=("ip netns del $b")
ip -n $a link add name eth1 type veth peer name eth1 netns $b
for host in "$a 10.99.0.1" "$b 10.99.0.2"; do
  set -- $host
  ip -n "$1" link set lo up
  ip -n "$1" addr add "$2/24" dev eth1
  ip -n "$1" link set eth1 up
done
# namespace, host name, command...: runs it as on a host of this name, which /etc/hosts takes for 127.0.1.1, as Debian's installer does
printf '127.0.0.1 localhost\n127.0.1.1 host-a host-b\n' >"$work/hosts"
on() {
  ip netns exec "$1" unshare --uts --mount sh -c 'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"' -- "$2" "$work/hosts" "${@:3}"
}
start() {  # rank, command...: of four, two on each host
  local rank=$1 host=$a name=host-a
  shift
  ((rank < 2)) || host=$b name=host-b
  on $host $name env RANK=$rank WORLD_SIZE=4 LOCAL_RANK=$((rank % 2)) LOCAL_WORLD_SIZE=2 MASTER_ADDR="$address" MASTER_PORT=29500 \
    ${secret:+TESSERA_JOB_SECRET=$secret} timeout 180 "$@" >"$work/rank$rank" 2>&1 &
  ranks[rank]=$!
}
all() {  # status, command...
  local want=$1 rank status
  shift
  for rank in 0 1 2 3; do start $rank "$@"; done
  for rank in 0 1 2 3; do
    status=0
    wait "${ranks[rank]}" || status=$?
    [[ $status == "$want" ]] || { tail -n 5 "$work"/rank?; die "namespaces: rank $rank ended with $status, expected $want"; }
  done
}

address=10.99.0.1 secret=of-this-test
all 0 "$conformance" tcp
proved namespaces "two hosts: $(grep "cases conform" "$work/rank0")"
secret=''
all 2 "$conformance" tcp
grep -q 'several hosts and have no secret' "$work/rank3" || die "namespaces: the missing secret was not named"
proved namespaces "without a secret: refused"
secret=none
all 0 "$conformance" tcp
proved namespaces "TESSERA_JOB_SECRET=none: $(grep "cases conform" "$work/rank0")"
secret=of-this-test
for rank in 0 1; do  # host a calls itself 127.0.1.1, others know its address
  address=host-a start $rank "$conformance" tcp
done
for rank in 2 3; do address=10.99.0.1 start $rank "$conformance" tcp; done
for rank in 0 1 2 3; do wait "${ranks[rank]}" || { cat "$work/rank$rank"; die "namespaces: rank 0's host calls itself 127.0.1.1"; }; done
proved namespaces "rank 0's host calls itself 127.0.1.1: $(grep "cases conform" "$work/rank0")"

address=10.99.0.1
for rank in 0 1 2 3; do start $rank "$conformance" tcp idle; done
for ((i = 0; i < 300; ++i)); do
  ! grep -q 'all 4 ranks are here' "$work/rank0" || break
  sleep 0.2
done
ip -n $a link set eth1 down
lost=$SECONDS
for rank in 0 1 2 3; do
  status=0
  wait "${ranks[rank]}" || status=$?
  [[ $status == 5 ]] || { cat "$work/rank$rank"; die "namespaces: rank $rank ended with $status after its peer's host was lost, expected 5"; }
done
((SECONDS - lost < 60)) || die "namespaces: a lost host was noticed only after $((SECONDS - lost)) s"
proved namespaces "the link between the hosts is cut: all four ranks end with exit code 5 within $((SECONDS - lost)) s"
ip -n $a link set eth1 up

if command -v mpirun >/dev/null && mpirun --version | grep -q 'Open MPI'; then
  # mpirun reaches the other host by a command in place of ssh: ARGS are "host command..."
  printf '#!/bin/sh\nshift\nexec ip netns exec %s sh -c "$*"\n' $b >"$work/remote"
  chmod +x "$work/remote"
  status=0
  on $a host-a timeout 180 mpirun --allow-run-as-root --oversubscribe --mca plm_rsh_agent "$work/remote" --mca btl tcp,self --mca btl_tcp_if_include eth1 \
    --mca oob_tcp_if_include eth1 --host 10.99.0.1:2,10.99.0.2:2 -n 4 "$conformance" mpi >"$work/output" 2>&1 || status=$?
  [[ $status == 0 ]] || { cat "$work/output"; die "namespaces: mpirun over two hosts ended with $status"; }
  proved namespaces "mpirun over two hosts: $(grep "cases conform" "$work/output")"
fi
