#!/usr/bin/env bash
# A quarter of an hour with a GPU (docs/gpu.md), and what comes after it: steps in order of worth, each with its limit in
# seconds and its own table. The first seven have 770 seconds together, which leaves 130 of 900 to start the machine.
#   research/gpu_day.sh [--dry-run] [--out DIR] [--minutes N] [STEP ...]
# A finished step is skipped, an unfinished one is gone on with: run it again until every step is finished.
# --dry-run says the commands; after N minutes nothing begins, and what runs then is stopped and kept.
# TASKS (runs/carried) has images and teachers, as python -m research.tasks.carry packs them. A teacher of plates or
# patches that is not there is trained here, at the cost of what follows.
# Variables: PYTHON (python); TASKS; FLAGS of the runs at scale; TOY=1: all of it on a CPU, tiny.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
trap 'kill $(jobs -p) 2>/dev/null; exit 130' INT TERM

ALL=(claim_plates fast quick_things32 quick_things224 standard_things32 standard_things224 frugal_plates
    tests students bench gradients paper frugal_patches claim_patches quick_plates quick_patches claim_5m speed
    claim_20m standard_plates standard_patches)
declare -A limit=([claim_plates]=400 [fast]=90 [quick_things32]=40 [quick_things224]=50 [standard_things32]=75
    [standard_things224]=75 [frugal_plates]=40)
rest=540 # seconds of every other step
python=${PYTHON:-python} out=runs/gpu_day dry='' stop=1000000 wanted=() carried=${TASKS:-runs/carried}
while [ $# -gt 0 ]; do
    case $1 in
    --dry-run) dry=yes ;;
    --out) out=${2:?--out: expected a directory} && shift ;;
    --minutes) stop=$((60 * ${2:?--minutes: expected a whole number})) && shift ;;
    *)
        [[ " ${ALL[*]} " == *" $1 "* ]] || { echo "gpu_day: $1: expected a step: ${ALL[*]}" >&2 && exit 2; }
        wanted+=("$1")
        ;;
    esac
    shift
done

read -ra flags <<<"${FLAGS:-}"
if [ -z "${TOY:-}" ]; then
    mapfile -t tests < <(grep -rl --include="test_*.py" "mark\.gpu" tests) # the others need the extra `dev`
    same=(--config configs/shapes.yaml --student.arch resnet18_8x)
    half=10000
    bench=(--rounds 3 --seconds 1.5)
    speed=(--against published --cases "resnet,digits28" "${bench[@]}")
    gradients=(--conditions "exact,tf32,bf16" --budget 300k --stages "0,0.04")
    teacher=(--arch resnet34_8x --optimizer adam --lr 0.001 --epochs 14 --batch-size 256 --precision bf16)
    teacher+=(--device auto --threads 0)
    net=(--student.arch resnet18_8x)
    paper=(--budget 2M)
    # answers in TF32, students in bf16; the estimate of `dfme` is in TF32 at a step that keeps its cosine
    scale=(--teacher.precision tf32 --precision bf16)
    more=(--methods "dfme,static" --budgets 5M --student-steps 10000)
    large=(--methods "dfme,static" --budgets 20M --student-steps 40000)
    student=(--batch 256 --steps 300 1000 --seeds 10 --device auto)
    frugal=(--budget 10k) quick=() standard=()
else
    tests=(tests/run/test_gpu_repeats.py)
    same=(--config configs/digits.yaml --student.replay-steps 1)
    half=1000
    bench=(--cases digits_paper --rounds 1 --seconds 0.01 --batch-size 4)
    speed=(--against published "${bench[@]}")
    gradients=(--conditions "exact,bf16" --budget 3k --stages 0 --batches 2 --batch-size 8)
    teacher=(--data.name digits --arch cnn_small --epochs 1)
    net=(--student.arch cnn_small)
    paper=(--budget 2k)
    scale=(--budgets 2k --student-steps 8 --methods "dfme,static")
    more=(--methods static)
    large=(--methods static)
    student=(--batch 16 --steps 2 --seeds 10 --count 40 --evaluated 40)
    frugal=(--budget 200 --student.passes 1)
    quick=(--attackers frugal --label-modes probabilities --defences none --twin none --budget 200)
    standard=(--dry-run)
    # what is left out are steps of others once more
    [ ${#wanted[@]} -gt 0 ] || wanted=($(printf '%s\n' "${ALL[@]}" | grep -v -e _patches -e _things224 -e quick_p -e standard_p))
fi
[ ${#wanted[@]} -gt 0 ] || wanted=("${ALL[@]}")

try() { # NAME WORDS: run them in what is left of the step's time; log, exit code, seconds and words are kept
    local log=$folder/$1.log began=$SECONDS left=$((ends - SECONDS)) code=0
    shift
    [ -z "$dry" ] || { echo "$name	$(printf '%q ' "$@")" && return; }
    [ "$left" -gt 0 ] || return 124
    timeout --foreground --signal INT --kill-after 30 "$left" "$@" >>"$log" 2>&1 || code=$?
    printf '%s\t%s\t%s\n' "$code" $((SECONDS - began)) "$*" >>"$folder/commands.tsv"
    return "$code"
}
once() { # NAME WORDS: a run, begun or gone on with; a finished one is left alone
    try "$1" "$python" run.py extract "${@:2}" --resume auto --out "$folder/$1"
}
several() { # VERB WORDS: a comparison or an audit, begun or gone on with
    try "$1" "$python" run.py "$@" $([ ! -d "$folder/$1/cells" ] || echo --resume) --out "$folder/$1"
}
taught() { # TASK: its images and its teacher, which is trained unless it is there; both become the words `on`
    local data=$carried/$1.npz weights=$carried/$1.safetensors
    [ -z "${TOY:-}" ] || data=digits
    [ -z "${TOY:-}" ] && [ -f "$weights" ] || weights=$out/$1.safetensors
    on=(--teacher.checkpoint "$weights" --evaluation.dataset "$data")
    local lacks=''
    [ "$data" = digits ] || [ -f "$data" ] || lacks=$data
    [ -f "$weights" ] || [ -n "${TOY:-}" ] || [ -f "research/tasks/$1.yaml" ] || lacks=$carried/$1.safetensors
    [ -n "$dry" ] || [ -z "$lacks" ] || {
        echo "$name: expected $lacks; it is packed by: python -m research.tasks.carry" && return 1
    }
    [ ! -f "$weights" ] || return 0
    [ "$lacks" != "$carried/$1.safetensors" ] || return 0 # a dry run: nothing here trains it
    set -- --config "research/tasks/$1.yaml" --data.name "$data" "${teacher[@]}" --out "$weights"
    [ -z "${TOY:-}" ] || shift 2 # the configuration of a task that is not there
    try teacher "$python" run.py train-teacher "$@" || return
    local right=100
    [ -n "$dry${TOY:-}" ] ||
        right=$(sed -nE 's/.*: accuracy ([0-9]+).*/\1/p' "$folder/teacher.log" | tail -n 1)
    [ "${right:-0}" -ge 70 ] || { # a copy of it would show nothing
        rm -f "$weights"
        echo "$name: the teacher is right on ${right:-0} %, expected at least 70" && return 1
    }
}
killed() { # WORDS: a run killed once half is spent, which `once` goes on with
    [ -z "$dry" ] && [ ! -e "$folder/killed" ] || return 0
    "$python" run.py extract "$@" --out "$folder/killed" >"$folder/killed.log" 2>&1 &
    local began=$SECONDS spent=0 run=$!
    while kill -0 "$run" && [ "$SECONDS" -lt "$ends" ] && [ "${spent:-0}" -lt "$half" ]; do
        sleep 0.1
        [ ! -e "$folder/killed/checkpoint.pt" ] ||
            spent=$(tail -n 1 "$folder/killed/metrics.jsonl" | sed -nE 's/.*"queries": ?([0-9]+).*/\1/p')
    done 2>/dev/null
    kill -9 "$run" && wait "$run" 2>/dev/null
    printf '%s\t%s\t%s\n' $? $((SECONDS - began)) "killed after $spent queries" >>"$folder/commands.tsv"
}
step_tests() { try pytest "$python" -m pytest -m gpu -n 0 "${tests[@]}" || [ $? = 1 ]; }
step_students() { # by --deterministic: twice, and killed
    local words=("${same[@]}" --budget $((2 * half)) --deterministic true --checkpoint-seconds 1)
    once eager "${words[@]}" && once again "${words[@]}" && killed "${words[@]}" &&
        once killed "${words[@]}"
}
step_bench() { try bench "$python" -m research.bench "${bench[@]}"; }
step_gradients() {
    set -- --config configs/digits.yaml "${gradients[@]}" --out "$folder/measured"
    [ -n "$dry" ] || rm -rf "$folder/measured" # it is not gone on with
    try gradients "$python" -m research.gradients "$@" --estimators sphere,sphere_step_0.1,dct_step_0.1
}
step_claim() { # TASK WORDS
    taught "$1" && set -- "${scale[@]}" "${@:2}" "${flags[@]}" &&
        several compare --config research/tasks/at_scale.yaml "${on[@]}" "${net[@]}" "$@"
}
step_claim_5m() { step_claim plates "${more[@]}"; }
step_claim_20m() { step_claim plates "${large[@]}"; }
step_fast() { # today's students and the fast one: the same steps, then whole runs of 10,000 scores
    taught things32 || return
    local pool=()
    [ ! -f "$carried/things32_pool.npz" ] || [ -n "${TOY:-}" ] || pool=(--pool "$carried/things32_pool.npz" --count 1334)
    try student "$python" -m research.fast_student --task "${on[1]}" "${on[3]}" "${pool[@]}" "${student[@]}" &&
        once fast --recipe frugal "${on[@]}" --student.arch cnn_whitened "${frugal[@]}" &&
        once today --recipe frugal "${on[@]}" "${net[@]}" "${frugal[@]}"
}
step_paper() { taught plates && once run --recipe paper "${on[@]}" "${net[@]}" "${paper[@]}"; }
step_frugal() { # TASK
    taught "$1" && once scores --recipe frugal "${on[@]}" "${net[@]}" "${frugal[@]}" &&
        once labels --recipe frugal "${on[@]}" "${net[@]}" "${frugal[@]}" --teacher.label-mode label
}
step_audit() { # TASK PROFILE WORDS
    local words=("${net[@]}")
    [ "$1" != things224 ] || words=() # whose default student is made for that size
    taught "$1" && several audit "${on[@]}" "${words[@]}" --profile "${@:2}"
}
step_quick() { step_audit "$1" quick "${quick[@]}"; }
step_standard() { step_audit "$1" standard "${standard[@]}"; }
step_speed() { # ours against the published loop; what is new would be the default where it wins
    try ieee "$python" -m research.bench "${speed[@]}" &&
        try tf32 "$python" -m research.bench "${speed[@]}" \
            --options estimator.arithmetic=tf32,teacher.precision=tf32
}
for name in "${wanted[@]}"; do
    folder=$out/$name
    ends=$((SECONDS + ${limit[$name]:-$rest}))
    [ "$ends" -lt "$stop" ] || ends=$stop
    if [ -z "$dry" ]; then
        [ ! -e "$folder/finished" ] || continue
        [ "$SECONDS" -lt "$stop" ] || exit 1
        mkdir -p "$folder"
        {
            git rev-parse HEAD || echo "no commit known"
            nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || echo "no GPU"
            "$python" -c 'import sys, importlib.metadata as m; print(sys.version, m.version("torch"))'
        } >"$folder/machine.txt" 2>/dev/null
    fi
    declare -F "step_$name" >/dev/null && do=("step_$name") || do=("step_${name%_*}" "${name##*_}")
    "${do[@]}" && state=finished || state=unfinished
    [ -z "$dry" ] || continue
    [ $state = unfinished ] || : >"$folder/finished"
    echo "$name: $state after $SECONDS seconds in all; $folder/table.md"
    "$python" -m research.gpu_tables "$out" "${ALL[@]}"
done
