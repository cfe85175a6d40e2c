# A shell script around the package, in the manner of a laboratory's job scripts.
set -euo pipefail
cd "$(dirname "$0")"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
python -m pkg.train --rows "${ROWS:-20}" "$@"
