# SPDX-License-Identifier: MIT
# The real torchrun: standalone, static, c10d; once restarted.
site=$(dirname "${TESSERA_TORCH_ROOT:-/nowhere/torch}")
python=python3
if ! PYTHONPATH=$site python3 -c 'import torch.distributed.run' 2>/dev/null; then
  site='' python=$deps/torchrun/bin/python
  [[ -x $python ]] || python3 -m venv "$deps/torchrun"
  "$python" -c 'import torch' 2>/dev/null || "$python" -m pip install --quiet --no-cache-dir torch==2.11.0
fi
torchrun() { PYTHONPATH=$site "$python" -m torch.distributed.run --no-python --nproc-per-node 2 "$@"; }
export -f torchrun
export site python
run() { expect "$1" "$2" bash -c 'torchrun "$@"' -- "${@:3}"; }

run 0 'conform: tcp, 2 ranks, 2 on this host, cpu, started by torchrun' --standalone "$conformance" tcp
proved torchrun "--standalone: $(grep "cases conform" "$work/output")"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
run 0 'conform: tcp, 2 ranks' --master-port "$port" "$conformance" tcp
proved torchrun "static, the agent owning MASTER_PORT: $(grep "cases conform" "$work/output")"
run 0 'conform: tcp, 2 ranks' --standalone --max-restarts 1 "$conformance" tcp restart
grep -q 'gives up in attempt 0' "$work/output" || die "torchrun: nothing failed before the restart"
proved torchrun "--max-restarts 1: rank 1 failed in attempt 0, attempt 1: $(grep "cases conform" "$work/output")"
run 0 'conform: tcp, 2 ranks' --master-port "$port" --max-restarts 1 "$conformance" tcp restart
proved torchrun "static, restarted once: $(grep "cases conform" "$work/output")"
run 0 'conform: tcp, 2 ranks' --rdzv-backend c10d --rdzv-endpoint "127.0.0.1:$port" --rdzv-id job "$conformance" tcp
proved torchrun "c10d: $(grep "cases conform" "$work/output")"
run 0 'ddp on 2 rank' --standalone $(squad "$work/squad")
proved torchrun "fine-tuning without --strategy: $(grep -m1 'ddp on 2 rank' "$work/output")"
printf '#!/bin/sh\nPYTHONPATH=%s exec %s -m torch.distributed.run "$@"\n' "$site" "$(command -v "$python")" >"$work/torchrun"
chmod +x "$work/torchrun"
compare() {  # folder, more arguments
  local arguments=($(squad "$work/$1"))
  PATH="$work:$PATH" "$bin/tessera-compare" --launcher torchrun --rank_counts 2 "${arguments[@]:1}" --backend auto "${@:2}"
}
export -f compare squad
export bin root work
expect 0 'fsdp-2: .*PASS' bash -c 'compare compared --strategies zero2,fsdp'
proved torchrun "tessera-compare: $(grep -o '^zero2-2: .*' "$work/output"), $(grep -o '^fsdp-2: .*' "$work/output")"
expect 2 'ddp-2: .*exit 2' bash -c 'compare refused --strategies ddp --reference false --backend mpi'
proved torchrun "tessera-compare, a row whose ranks end with 2: $(grep -o '^ddp-2: .*' "$work/output")"
run 1 'Root Cause' --standalone $(squad "$work/nothing") --validation_file "$work/nowhere.json"
grep -q 'traceback *: .*nowhere.json' "$work/output" || { cat "$work/output"; die "torchrun: its summary does not name the cause"; }
proved torchrun "its summary names the cause: $(grep -m1 -o 'traceback *: .*nowhere.json[^"]*' "$work/output")"
