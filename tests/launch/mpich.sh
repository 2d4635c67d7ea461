# SPDX-License-Identifier: MIT
# MPICH's mpirun (Hydra) on programs that are built with Open MPI, or without MPI. Unpacked, not installed: it would replace Open MPI's mpirun.
mpich=$deps/mpich
if [[ ! -x $mpich/usr/bin/mpiexec.hydra ]]; then
  mkdir -p "$mpich/packages" && cd "$mpich/packages"
  chmod a+rwx .
  apt-get download -q mpich libmpich12 hwloc-nox libslurm38 >/dev/null
  for package in *.deb; do dpkg -x "$package" "$mpich"; done
  cd "$root"
fi
hydra() { LD_LIBRARY_PATH=$mpich/usr/lib/x86_64-linux-gnu "$mpich/usr/bin/mpiexec.hydra" "$@"; }
export -f hydra
export mpich
run() { expect "$1" "$2" bash -c 'hydra "$@"' -- "${@:3}"; }

run 0 'conform: tcp, 3 ranks, 3 on this host, cpu, started by hydra' -n 3 "$conformance" auto
proved mpich "mpirun -n 3 is one job of three ranks: $(grep "cases conform" "$work/output")"
run 2 'belongs to another MPI' -n 2 "$conformance" mpi
proved mpich "--backend mpi is refused: $(grep -om1 'the mpirun that started.*' "$work/output")"
run 4 'this rank gives up' -n 3 "$conformance" tcp fail
proved mpich "a rank that fails ends the job with its exit code 4"
run 0 'ddp on 2 rank' -n 2 $(squad "$work/squad")
proved mpich "fine-tuning without --strategy: $(grep -m1 'ddp on 2 rank' "$work/output")"
