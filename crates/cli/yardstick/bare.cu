// Bare kernels for two ranks: what the hardware does when nothing makes the work safe.
//
// They are a yardstick for `mscclrs bench limits`, no part of the library. A wait looks at no abort
// word, each block counts its own epochs (so the grid must not change between two resets by the
// host), and peers are plain pointers in the arguments. The one precaution is that every wait is
// bounded: after POLLS fruitless polls the kernel writes `failed` and goes on with wrong data; the
// host reads that word after each measurement.
//
// Made into bare.sm_90.ptx by build.sh, which needs nvcc 13.0. The host declares the same arguments
// in src/yardstick/kernels.rs; each abi_NAME below is the hash of that declaration, and tests hold
// the two together.

#include <stdint.h>

#define ENTRY extern "C" __global__ void
#define ABI(name, hash) extern "C" __device__ unsigned long long abi_##name = hash

namespace {

constexpr uint32_t POLLS = 1u << 24;
constexpr uint32_t POLLS_A_LOOK = 1u << 16;

__device__ __forceinline__ uint64_t load_relaxed(const uint64_t *at) {
    uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

__device__ __forceinline__ uint64_t load_acquire(const uint64_t *at) {
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

__device__ __forceinline__ void store_relaxed(uint64_t *at, uint64_t value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

__device__ __forceinline__ void store_release(uint64_t *at, uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

__device__ __forceinline__ void add_release(uint64_t *at, uint64_t value) {
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

struct Pair {
    uint64_t first, second;
};

__device__ __forceinline__ Pair load_pair(const uint64_t *at) {
    Pair pair;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(pair.first), "=l"(pair.second)
                 : "l"(at)
                 : "memory");
    return pair;
}

__device__ __forceinline__ void store_pair(uint64_t *at, uint64_t first, uint64_t second) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(first), "l"(second)
                 : "memory");
}

// A packet word: 4 bytes of data below, the flag above.
__device__ __forceinline__ uint64_t packet(uint32_t data, uint32_t flag) {
    return static_cast<uint64_t>(flag) << 32 | data;
}

__device__ __forceinline__ bool carries(uint64_t word, uint32_t flag) {
    return static_cast<uint32_t>(word >> 32) == flag;
}

// Two bfloat16 sums.
__device__ __forceinline__ uint32_t add(uint32_t a, uint32_t b) {
    uint32_t sum;
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}

__device__ __forceinline__ uint4 add(uint4 a, uint4 b) {
    return make_uint4(add(a.x, b.x), add(a.y, b.y), add(a.z, b.z), add(a.w, b.w));
}

// Counts the fruitless polls of one wait. A wait of a rank that has failed before ends early, so
// that a graph of failing kernels is over soon.
struct Bound {
    uint32_t *failed;
    uint32_t polls = 0;

    __device__ __forceinline__ explicit Bound(uint32_t *failed) : failed(failed) {}

    __device__ __forceinline__ bool reached() {
        if (++polls % POLLS_A_LOOK != 0) return false;
        auto word = static_cast<volatile uint32_t *>(failed);
        if (polls < POLLS && *word == 0) return false;
        *word = 1;
        return true;
    }
};

__device__ __forceinline__ void await_at_least(const uint64_t *at, uint64_t want, uint32_t *failed) {
    Bound bound(failed);
    while (load_relaxed(at) < want && !bound.reached()) {
    }
}

// Waits for the same block of the peer: all that either did before is visible to both after.
__device__ __forceinline__ void meet_block(uint64_t *remote, const uint64_t *local, uint64_t mark,
                                           uint32_t *failed) {
    __syncthreads();
    if (threadIdx.x == 0) {
        store_release(remote + blockIdx.x, mark);
        await_at_least(local + blockIdx.x, mark, failed);
        load_acquire(local + blockIdx.x);
    }
    __syncthreads();
}

template <int UNROLL>
__device__ __forceinline__ void copy_strided(uint4 *to, const uint4 *from, uint32_t words,
                                             uint32_t first, uint32_t step) {
    uint32_t i = first;
    for (; i + (UNROLL - 1) * step < words; i += UNROLL * step) {
        uint4 held[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; k++) held[k] = from[i + k * step];
#pragma unroll
        for (int k = 0; k < UNROLL; k++) to[i + k * step] = held[k];
    }
    for (; i < words; i += step) to[i] = from[i];
}

}  // namespace

// ---- nothing ------------------------------------------------------------------------------------

struct EmptyArgs {
    uint64_t unused;
};

ABI(bare_empty, 0x32ee3f2afe4dacd3);
ENTRY bare_empty(const __grid_constant__ EmptyArgs args) {}

// ---- hops ---------------------------------------------------------------------------------------

struct HopArgs {
    uint64_t *remote;  // the peer's word
    uint64_t *local;   // this rank's word, written by the peer
    uint64_t *count;   // hops received so far, this rank's own
    uint32_t *failed;
    uint32_t rounds;  // round trips
    uint32_t starts;  // 1 on the rank that sends first
};

// One lane: a counting signal there and back.
ABI(bare_hop_signal, 0xd204d4bec3d5e9e3);
ENTRY __launch_bounds__(32) bare_hop_signal(const __grid_constant__ HopArgs args) {
    if (threadIdx.x != 0) return;
    uint64_t count = *args.count;
    for (uint32_t round = 0; round < args.rounds; round++) {
        count++;
        if (args.starts) add_release(args.remote, 1);
        await_at_least(args.local, count, args.failed);
        if (!args.starts) add_release(args.remote, 1);
    }
    *args.count = count;
}

// One lane: an 8-byte packet there and back, with the data that came.
ABI(bare_hop_ll8, 0xd204d4bec3d5e9e3);
ENTRY __launch_bounds__(32) bare_hop_ll8(const __grid_constant__ HopArgs args) {
    if (threadIdx.x != 0) return;
    uint64_t count = *args.count;
    uint32_t data = 0;
    for (uint32_t round = 0; round < args.rounds; round++) {
        count++;
        const uint32_t flag = static_cast<uint32_t>(count);
        if (args.starts) store_relaxed(args.remote, packet(data, flag));
        Bound bound(args.failed);
        uint64_t word;
        do {
            word = load_relaxed(args.local);
        } while (!carries(word, flag) && !bound.reached());
        data = static_cast<uint32_t>(word) + 1;
        if (!args.starts) store_relaxed(args.remote, packet(data, flag));
    }
    *args.count = count;
}

// ---- allreduce of bfloat16 sums -----------------------------------------------------------------

struct PacketArgs {
    const uint32_t *input;
    uint32_t *output;
    uint64_t *remote;  // the peer's slots
    uint64_t *local;   // this rank's slots
    uint32_t *epochs;  // one a block
    uint32_t *failed;
    uint32_t packets;  // at most one a lane
    uint32_t half;     // slot words a half; calls alternate between two
};

// One-shot by 8-byte packets: every lane sends 4 bytes and waits for as much.
ABI(bare_allreduce_ll8, 0x73ca77025ad41f6a);
ENTRY __launch_bounds__(1024, 2) bare_allreduce_ll8(const __grid_constant__ PacketArgs args) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t flag = args.epochs[blockIdx.x];
    if (i < args.packets) {
        const uint32_t own = args.input[i];
        const uint32_t slot = (flag & 1) * args.half + i;
        store_relaxed(args.remote + slot, packet(own, flag));
        Bound bound(args.failed);
        uint64_t word;
        do {
            word = load_relaxed(args.local + slot);
        } while (!carries(word, flag) && !bound.reached());
        args.output[i] = add(own, static_cast<uint32_t>(word));
    }
    __syncthreads();
    if (threadIdx.x == 0) args.epochs[blockIdx.x] = flag + 1;
}

// One-shot by 16-byte packets: every lane sends 8 bytes and waits for as much.
ABI(bare_allreduce_ll16, 0x73ca77025ad41f6a);
ENTRY __launch_bounds__(1024, 2) bare_allreduce_ll16(const __grid_constant__ PacketArgs args) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t flag = args.epochs[blockIdx.x];
    if (i < args.packets) {
        const uint2 own = reinterpret_cast<const uint2 *>(args.input)[i];
        const uint32_t slot = (flag & 1) * args.half + 2 * i;
        store_pair(args.remote + slot, packet(own.x, flag), packet(own.y, flag));
        Bound bound(args.failed);
        Pair pair;
        do {
            pair = load_pair(args.local + slot);
        } while (!(carries(pair.first, flag) && carries(pair.second, flag)) && !bound.reached());
        const uint2 sum = make_uint2(add(own.x, static_cast<uint32_t>(pair.first)),
                                     add(own.y, static_cast<uint32_t>(pair.second)));
        reinterpret_cast<uint2 *>(args.output)[i] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) args.epochs[blockIdx.x] = flag + 1;
}

struct StoreArgs {
    const uint4 *input;
    uint4 *output;
    uint4 *remote;  // the peer's slots
    const uint4 *local;
    uint64_t *remote_signals;  // one a block
    uint64_t *local_signals;
    uint32_t *epochs;  // one a block
    uint32_t *failed;
    uint32_t words;      // 16-byte words in all
    uint32_t per_block;  // 16-byte words a block
    uint32_t half;       // 16-byte words a half; calls alternate between two
};

// One-shot by plain stores: each block sends its part, signals once, and adds what came.
ABI(bare_allreduce_store, 0xc47b0f20a3a998b3);
ENTRY __launch_bounds__(1024, 1) bare_allreduce_store(const __grid_constant__ StoreArgs args) {
    const uint32_t epoch = args.epochs[blockIdx.x];
    const uint32_t begin = min(blockIdx.x * args.per_block, args.words);
    const uint32_t words = min(args.per_block, args.words - begin);
    const uint4 *input = args.input + begin;
    uint4 *output = args.output + begin;
    const uint32_t slot = (epoch & 1) * args.half + begin;

    copy_strided<4>(args.remote + slot, input, words, threadIdx.x, blockDim.x);
    meet_block(args.remote_signals, args.local_signals, 2ull * epoch + 1, args.failed);

    const uint4 *came = args.local + slot;
    const uint32_t step = blockDim.x;
    uint32_t i = threadIdx.x;
    for (; i + step < words; i += 2 * step) {
        const uint4 a = input[i], b = input[i + step];
        const uint4 c = came[i], d = came[i + step];
        output[i] = add(a, c);
        output[i + step] = add(b, d);
    }
    if (i < words) output[i] = add(input[i], came[i]);
    if (threadIdx.x == 0) args.epochs[blockIdx.x] = epoch + 1;
}

struct PullArgs {
    const uint4 *input;
    const uint4 *peer_input;
    uint4 *output;
    uint4 *peer_output;
    uint64_t *remote_signals;  // one a block
    uint64_t *local_signals;
    uint32_t *epochs;  // one a block
    uint32_t *failed;
    uint32_t begin;  // this rank's half, in 16-byte words
    uint32_t words;  // 16-byte words of that half
};

// Zero copy: each rank loads its half of the peer's input, adds its own, and stores the sum into both
// outputs.
ABI(bare_allreduce_pull, 0xf019d97e575242b7);
ENTRY __launch_bounds__(1024, 1) bare_allreduce_pull(const __grid_constant__ PullArgs args) {
    constexpr int UNROLL = 4;
    const uint32_t epoch = args.epochs[blockIdx.x];
    meet_block(args.remote_signals, args.local_signals, 2ull * epoch, args.failed);

    const uint4 *mine = args.input + args.begin;
    const uint4 *theirs = args.peer_input + args.begin;
    uint4 *here = args.output + args.begin;
    uint4 *there = args.peer_output + args.begin;
    const uint32_t step = gridDim.x * blockDim.x;
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + (UNROLL - 1) * step < args.words; i += UNROLL * step) {
        uint4 far[UNROLL], near[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; k++) far[k] = theirs[i + k * step];
#pragma unroll
        for (int k = 0; k < UNROLL; k++) near[k] = mine[i + k * step];
#pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            const uint4 sum = add(near[k], far[k]);
            there[i + k * step] = sum;
            here[i + k * step] = sum;
        }
    }
    for (; i < args.words; i += step) {
        const uint4 sum = add(mine[i], theirs[i]);
        there[i] = sum;
        here[i] = sum;
    }

    meet_block(args.remote_signals, args.local_signals, 2ull * epoch + 1, args.failed);
    if (threadIdx.x == 0) args.epochs[blockIdx.x] = epoch + 1;
}

// ---- copies -------------------------------------------------------------------------------------

struct CopyArgs {
    uint4 *to;
    const uint4 *from;
    uint32_t words;  // of 16 bytes
};

// To a peer: few loads in flight, the stores need no answer.
ABI(bare_copy_store, 0x9fc292330d723c4a);
ENTRY __launch_bounds__(1024, 1) bare_copy_store(const __grid_constant__ CopyArgs args) {
    copy_strided<4>(args.to, args.from, args.words, blockIdx.x * blockDim.x + threadIdx.x,
                    gridDim.x * blockDim.x);
}

// From a peer: many loads in flight, since each is a round trip.
ABI(bare_copy_load, 0x9fc292330d723c4a);
ENTRY __launch_bounds__(512, 2) bare_copy_load(const __grid_constant__ CopyArgs args) {
    copy_strided<8>(args.to, args.from, args.words, blockIdx.x * blockDim.x + threadIdx.x,
                    gridDim.x * blockDim.x);
}

struct BulkArgs {
    uint8_t *to;
    const uint8_t *from;
    uint32_t *failed;
    uint32_t chunks;
    uint32_t chunk_bytes;  // a multiple of 16; STAGES of them are the block's shared memory
};

// Bulk copies through a ring in shared memory, driven by one lane. A chunk's slot is loaded again
// LAG chunks after its store was issued, so that AHEAD loads and LAG stores are under way at a time.
ABI(bare_copy_bulk, 0xfd34bd5b22151974);
ENTRY __launch_bounds__(32) bare_copy_bulk(const __grid_constant__ BulkArgs args) {
    constexpr uint32_t STAGES = 6, AHEAD = 3, LAG = STAGES - AHEAD;
    extern __shared__ __align__(128) uint8_t ring[];
    __shared__ __align__(8) uint64_t arrived[STAGES];
    if (threadIdx.x != 0) return;

    const uint32_t slots = static_cast<uint32_t>(__cvta_generic_to_shared(ring));
    const uint32_t barriers = static_cast<uint32_t>(__cvta_generic_to_shared(arrived));
    for (uint32_t s = 0; s < STAGES; s++)
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barriers + 8 * s) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");

    uint32_t load_slot = 0;
    uint32_t load_chunk = blockIdx.x;
    auto load_next = [&] {
        if (load_chunk >= args.chunks) return;
        const uint64_t offset = static_cast<uint64_t>(load_chunk) * args.chunk_bytes;
        const uint32_t barrier = barriers + 8 * load_slot;
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier),
                     "r"(args.chunk_bytes)
                     : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                slots + load_slot * args.chunk_bytes),
            "l"(args.from + offset), "r"(args.chunk_bytes), "r"(barrier)
            : "memory");
        load_chunk += gridDim.x;
        load_slot = load_slot + 1 == STAGES ? 0 : load_slot + 1;
    };

    for (uint32_t k = 0; k < AHEAD; k++) load_next();
    uint32_t slot = 0, parity = 0;
    for (uint32_t chunk = blockIdx.x; chunk < args.chunks; chunk += gridDim.x) {
        Bound bound(args.failed);
        uint32_t here = 0;
        do {
            asm volatile(
                "{\n\t.reg .pred done;\n\t"
                "mbarrier.try_wait.parity.shared.b64 done, [%1], %2;\n\t"
                "selp.u32 %0, 1, 0, done;\n\t}"
                : "=r"(here)
                : "r"(barriers + 8 * slot), "r"(parity)
                : "memory");
        } while (!here && !bound.reached());
        if (!here) break;
        const uint64_t offset = static_cast<uint64_t>(chunk) * args.chunk_bytes;
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                         args.to + offset),
                     "r"(slots + slot * args.chunk_bytes), "r"(args.chunk_bytes)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        // The next load's slot was last read by the store issued LAG chunks ago.
        asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LAG) : "memory");
        load_next();
        if (++slot == STAGES) {
            slot = 0;
            parity ^= 1;
        }
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
