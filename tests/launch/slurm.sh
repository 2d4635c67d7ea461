# SPDX-License-Identifier: MIT
# Slurm on this host, with two nodes of its own: plain srun, no variables.
if ! command -v slurmctld >/dev/null || ! command -v munged >/dev/null; then
  apt-get update -q >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends slurm-wlm munge >/dev/null
fi
[[ $(id -u) == 0 ]] || die "slurm: its daemons need root"

start_munge() {
  if munge -n >/dev/null 2>&1; then return; fi
  mkdir -p /run/munge /var/log/munge /var/lib/munge /etc/munge
  [[ -e /etc/munge/munge.key ]] || dd if=/dev/urandom of=/etc/munge/munge.key bs=1 count=1024 status=none
  chown -R munge: /run/munge /var/log/munge /var/lib/munge /etc/munge
  chmod 400 /etc/munge/munge.key
  runuser -u munge -- /usr/sbin/munged --force
  cleanup+=("kill \$(cat /run/munge/munged.pid)")
}
stop_slurm() {
  local pid
  for pid in $(cat "$work"/slurm/*.pid); do
    kill "$pid" || continue
    timeout 20 tail --pid="$pid" -f /dev/null || true
  done
}
start_slurm() {
  local host ports node
  host=$(hostname -s)
  ports=($(python3 -c '
import socket
sockets = [socket.socket() for _ in range(3)]
for s in sockets: s.bind(("127.0.0.1", 0))
print(*[s.getsockname()[1] for s in sockets])'))
  mkdir -p "$work/slurm/state" "$work/slurm/spool"
  cat >"$work/slurm/slurm.conf" <<CONF
ClusterName=launch
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation=$work/slurm/state
SlurmdSpoolDir=$work/slurm/spool/%n
SlurmctldPidFile=$work/slurm/slurmctld.pid
SlurmdPidFile=$work/slurm/%n.pid
SlurmctldLogFile=$work/slurm/slurmctld.log
SlurmdLogFile=$work/slurm/%n.log
MpiDefault=none
ReturnToService=2
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[1]} CPUs=$(nproc --all) State=UNKNOWN
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[2]} CPUs=$(nproc --all) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
CONF
  export SLURM_CONF=$work/slurm/slurm.conf
  cleanup+=(stop_slurm)
  slurmctld -f "$SLURM_CONF"
  for node in n1 n2; do slurmd -N "$node" -f "$SLURM_CONF"; done
  for ((i = 0; i < 120; ++i)); do
    [[ $(sinfo -h -o %T 2>/dev/null | sort -u) != idle ]] || return 0
    sleep 0.5
  done
  cat "$work"/slurm/*.log
  die "slurm: the nodes did not come up"
}
start_munge
start_slurm

expect 0 'conform: tcp, 2 ranks, 2 on this host, cpu, started by srun' srun -N1 -n2 "$conformance" tcp
proved slurm "srun -n2, no variables: $(grep "cases conform" "$work/output")"
expect 0 'conform: tcp, 2 ranks' srun -N1 -n2 --export=ALL,MASTER_ADDR=127.0.0.1,MASTER_PORT=29541 "$conformance" tcp
proved slurm "srun with MASTER_ADDR and MASTER_PORT: $(grep "cases conform" "$work/output")"
expect 0 'conform: tcp, 3 ranks, [12] on this host' srun -N2 -n3 --export=ALL,MASTER_ADDR=127.0.0.1,TESSERA_JOB_SECRET=of-this-test "$conformance" tcp
proved slurm "srun -N2 -n3 with a secret: $(grep "cases conform" "$work/output")"
expect 2 'several hosts and have no secret' srun -N2 -n2 --export=ALL,MASTER_ADDR=127.0.0.1 "$conformance" tcp
proved slurm "srun -N2 without a secret is refused"
cat >"$work/batch.sh" <<BATCH
#!/bin/bash
export RANK=0 WORLD_SIZE=1
srun -n2 $conformance tcp
BATCH
expect 2 '' sbatch --wait -N1 -n2 -o "$work/batch.out" "$work/batch.sh"
grep -q 'RANK=0 against SLURM_PROCID=1' "$work/batch.out" || { cat "$work/batch.out"; die "slurm: the contradiction was not named"; }
proved slurm "RANK and WORLD_SIZE exported in a batch script are refused on all ranks: $(grep -c 'contradict' "$work/batch.out") line"
for i in 1 2; do srun -N1 -n2 --overlap "$conformance" tcp >"$work/job$i" 2>&1 & jobs[i]=$!; done
for i in 1 2; do wait "${jobs[i]}" || { cat "$work/job$i"; die "slurm: two jobs at once"; }; done
proved slurm "two jobs at once on one node"
expect 0 'ddp on 2 rank' srun -N1 -n2 $(squad "$work/squad")
proved slurm "fine-tuning without --strategy: $(grep -m1 'ddp on 2 rank' "$work/output")"

# examples/slurm/requeue.sbatch: a signal before the time limit, a checkpoint, queued again, gone on.
sed '/gpus-per-node/d' "$root/examples/slurm/requeue.sbatch" >"$work/requeue.sbatch"
job=$(sbatch --parsable --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --export=ALL,MASTER_ADDR=127.0.0.1,MASTER_PORT=29543 -o "$work/requeue.out" \
  "$work/requeue.sbatch" $(squad "$work/requeued" 60) --save_steps 1000 --logging_steps 1)
appears() {  # pattern: in the job's output within five minutes
  for ((i = 0; i < 600; ++i)); do
    ! grep -q "$1" "$work/requeue.out" 2>/dev/null || return 0
    sleep 0.5
  done
  cat "$work/requeue.out"
  scontrol show job "$job"
  die "slurm: no '$1' in the output of the job to be queued again"
}
appears '^step 5/'
scancel --signal=USR1 "$job"
appears 'stopped by a signal after step'
# Slurm lets a job that was queued again wait for two minutes; this one need not.
for ((i = 0; i < 60; ++i)); do
  [[ $(squeue -h -j "$job" -o %T) != PENDING ]] || break
  sleep 0.5
done
scontrol update JobId="$job" StartTime=now
appears 'resumed from'
appears '^done: '
proved slurm "requeue.sbatch on two nodes: $(grep -o 'stopped by a signal after step [0-9]*' "$work/requeue.out" | head -1), exit 75, $(grep -o 'resumed from checkpoint.*\|resumed from .*/checkpoint-[0-9]*' "$work/requeue.out" | head -1 | sed 's,/.*/,,'), $(grep -o '^done: train loss [0-9.]*' "$work/requeue.out")"

# examples/slurm/container.sbatch, with a stand-in for Apptainer that runs the command without a container.
mkdir -p "$work/stand_in"
cat >"$work/stand_in/apptainer" <<'APPTAINER'
#!/bin/bash
[[ $1 == exec && $2 == --nv && $3 == --bind && $5 == --pwd && $7 == --env && $9 == *.sif ]] || { echo "apptainer: $*" >&2; exit 9; }
cd "$6" && export "$8" && shift 9 && exec "$@"
APPTAINER
chmod +x "$work/stand_in/apptainer"
sed '/gpus-per-node/d' "$root/examples/slurm/container.sbatch" >"$work/container.sbatch"
expect 0 '' env IMAGE="$work/tessera.sif" CACHE="$work/cache" PATH="$work/stand_in:$bin:$PATH" MASTER_ADDR=127.0.0.1 MASTER_PORT=29545 sbatch --wait --nodes=2 --ntasks-per-node=1 \
  --cpus-per-task=1 --chdir="$work" -o "$work/container.out" "$work/container.sbatch" $(squad "$work/contained") --save_steps 1000
grep -q 'ddp on 2 rank' "$work/container.out" && grep -q '^done: ' "$work/container.out" || { cat "$work/container.out"; die "slurm: container.sbatch"; }
proved slurm "container.sbatch on two nodes: $(grep -o 'ddp on 2 ranks' "$work/container.out"), $(grep -c '^done: ' "$work/container.out") run done"
