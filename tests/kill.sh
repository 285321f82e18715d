#!/bin/sh
# kill -9 of a process that writes to a target of a drive, many times; what it had flushed is there each time.
# Use: sh tests/kill.sh [ROUNDS] [SEED]     (200 rounds without a number; a seed draws other moments)
set -eu
cd "$(dirname "$0")/.."
FLASHLANE_KILLS=${1:-200} FLASHLANE_KILL_SEED=${2:-$(date +%s)}
export FLASHLANE_KILLS FLASHLANE_KILL_SEED
echo "kill.sh: $FLASHLANE_KILLS rounds, seed $FLASHLANE_KILL_SEED"
${CARGO:-cargo} test --release -p flashlane --test cli -- --nocapture flushed_sectors_survive_kill_9
