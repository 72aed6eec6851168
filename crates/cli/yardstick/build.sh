#!/bin/sh
# Makes bare.sm_90.ptx from bare.cu: NVCC=/path/to/nvcc ./build.sh (nvcc 13.0; from PyPI:
# nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-crt of 13.0.88, nvidia-cuda-runtime, nvidia-cuda-cccl).
#
# The PTX version is lowered to what the instructions need, so that drivers from CUDA 12.2 on load
# it, and the layout words are made visible to the host.
set -eu
cd "$(dirname "$0")"
out=bare.sm_90.ptx
"${NVCC:-nvcc}" -std=c++17 -O3 -arch=sm_90 -ptx -o "$out.part" bare.cu
{
    echo "// Made from bare.cu by build.sh; do not edit."
    echo "// sha256 of bare.cu: $(sha256sum <bare.cu | cut -d' ' -f1)"
    sed -e 's/^\.version .*/.version 8.2/' -e 's/^\.global \(.*\) abi_/.visible .global \1 abi_/' \
        "$out.part"
} >"$out"
rm "$out.part"
