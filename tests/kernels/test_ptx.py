"""The PTX text of ptx.cuh, which the simulated machine does not see: what machine code it becomes.

Each primitive is compiled in a kernel of its own. The facts fail for a text that is wrong.
"""

from __future__ import annotations

import re

import pytest

from gdt.cuda import compiler, sources
from gdt.cuda.nvrtc import nvrtc
from tests.needs import need_nvrtc

from .machine_code import ARCH
from .test_compiled import disassembled

PROBES = """#include "ptx.cuh"
#define PROBE extern "C" __global__ void
PROBE bfloat16(const float* x, uint16_t* out) {
  out[threadIdx.x] = ptx::to_bfloat16(x[threadIdx.x]).bits;
}
PROBE words(const uint4* x, uint4* out) {
  const uint4 y = x[threadIdx.x];
  const uint32_t four[4] = {y.x, y.y, y.z, y.w};
  ptx::store_words(out + threadIdx.x, four);
}
PROBE two_words(const uint2* x, uint2* out) {
  const uint32_t two[2] = {x[threadIdx.x].x, x[threadIdx.x].y};
  ptx::store_words(out + threadIdx.x, two);
}
PROBE arrival(unsigned* x, float* y, float* out) {
  y[threadIdx.x] = 1;
  __syncthreads();
  const unsigned before = ptx::count_arrival(x);
  out[threadIdx.x] = before + y[threadIdx.x ^ 1];
}
#if __CUDA_ARCH__ >= 800
PROBE double_product(const double4* a, const double2* b, double4* d) {
  const double4 x = a[threadIdx.x], z = d[threadIdx.x];
  const double2 y = b[threadIdx.x];
  const double left[4] = {x.x, x.y, x.z, x.w};
  double sums[4] = {z.x, z.y, z.z, z.w};
  ptx::multiply(sums, left, y.x, y.y, double());
  d[threadIdx.x] = make_double4(sums[0], sums[1], sums[2], sums[3]);
}
#endif
#if __CUDA_ARCH__ >= 900
PROBE zero_fill(const uint4* x, int bytes, uint4* out) {
  __shared__ uint4 tile[32];
  ptx::copy_async_16(tile + threadIdx.x, x + threadIdx.x, bytes);
  ptx::copy_async_commit(), ptx::copy_async_wait<0>(), __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x ^ 1];
}
PROBE tf32(const float* x, unsigned* out) { out[threadIdx.x] = ptx::to_tf32(x[threadIdx.x]); }
PROBE half(const float* x, uint16_t* out) {
  out[threadIdx.x] = ptx::to_half(x[threadIdx.x]).bits;
}
PROBE half_pair(const float2* x, unsigned* out) {
  out[threadIdx.x] = ptx::to_pair(x[threadIdx.x].x, x[threadIdx.x].y, half_t());
}
PROBE bfloat16_pair(const float2* x, unsigned* out) {
  out[threadIdx.x] = ptx::to_pair(x[threadIdx.x].x, x[threadIdx.x].y, bfloat16_t());
}
PROBE power(const float* x, float* out) { out[threadIdx.x] = ptx::power_of_2(x[threadIdx.x]); }
template <bool TRANSPOSED> __device__ void load_matrices(uint4* out, int at) {
  __shared__ uint4 tile[64];
  tile[threadIdx.x] = out[threadIdx.x], __syncthreads();
  uint32_t r[4];
  if (TRANSPOSED) ptx::load_matrix_x4_transposed(r, tile + at);
  else ptx::load_matrix_x4(r, tile + at);
  out[threadIdx.x] = make_uint4(r[0], r[1], r[2], r[3]);
}
PROBE matrices(uint4* out, int at) { load_matrices<false>(out, at); }
PROBE transposed_matrices(uint4* out, int at) { load_matrices<true>(out, at); }
template <typename T> __device__ void multiply(const uint4* a, const uint2* b, float4* d) {
  const uint4 x = a[threadIdx.x];
  const uint2 y = b[threadIdx.x];
  const float4 z = d[threadIdx.x];
  const uint32_t left[4] = {x.x, x.y, x.z, x.w};
  float sums[4] = {z.x, z.y, z.z, z.w};
  ptx::multiply(sums, left, y.x, y.y, T());
  d[threadIdx.x] = make_float4(sums[0], sums[1], sums[2], sums[3]);
}
PROBE half_product(const uint4* a, const uint2* b, float4* d) { multiply<half_t>(a, b, d); }
PROBE bfloat16_product(const uint4* a, const uint2* b, float4* d) { multiply<bfloat16_t>(a, b, d); }
PROBE tf32_product(const uint4* a, const uint2* b, float4* d) { multiply<float>(a, b, d); }
PROBE barrier(int parity, int* out) {
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) ptx::barrier_init(&barrier, 32), ptx::barrier_init_fence();
  __syncthreads();
  ptx::barrier_arrive(&barrier), ptx::barrier_wait(&barrier, parity);
  out[threadIdx.x] = 1;
}
PROBE two_copies(const uint4* x, uint4* out) {
  __shared__ uint4 tile[64];
  ptx::copy_async_16(tile + threadIdx.x, x + threadIdx.x, 16), ptx::copy_async_commit();
  ptx::copy_async_16(tile + threadIdx.x + 32, x + threadIdx.x + 32, 16), ptx::copy_async_commit();
  ptx::copy_async_wait<1>(), __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x ^ 1];
}
PROBE copied_tile(const __grid_constant__ TensorMap map, int c0, int c1, int c2, int bytes) {
  GDT_DYNAMIC_SHARED(tile);
  __shared__ uint64_t barrier;
  ptx::barrier_arrive_expecting(&barrier, bytes);
  ptx::copy_tile(tile, &map, &barrier, c0, c1, c2);
}
PROBE in_cluster(const __grid_constant__ TensorMap map, int c0, int c1, int c2, int* out) {
  GDT_DYNAMIC_SHARED(tile);
  __shared__ uint64_t barrier;
  out[0] = ptx::cluster_rank();
  ptx::cluster_sync();
  ptx::copy_tile_to_all<2>(tile, &map, &barrier, c0, c1, c2);
}
PROBE arrival_in(int block) {
  __shared__ uint64_t barriers[2];
  ptx::barrier_arrive_in(barriers + 1, block);
}
PROBE word_in(int block, uint32_t word) {
  __shared__ uint32_t words[2];
  ptx::store_in(words + 1, block, word);
}
PROBE stored_matrices(uint4* x) {
  __shared__ uint4 tile[64];
  const uint4 y = x[threadIdx.x];
  const uint32_t r[4] = {y.x, y.y, y.z, y.w};
  ptx::store_matrix_x4(tile + threadIdx.x, r), ptx::store_fence(), __syncthreads();
  x[threadIdx.x] = tile[threadIdx.x ^ 1];
}
PROBE stored_tile(const __grid_constant__ TensorMap map, int c0, int c1, int c2) {
  GDT_DYNAMIC_SHARED(tile);
  ptx::store_tile(&map, tile, c0, c1, c2), ptx::store_commit();
  ptx::store_tile(&map, tile + 1024, c0, c1, c2), ptx::store_commit();
  ptx::store_wait<1>();
}
PROBE group_products(uint64_t a, uint64_t b, int keep, float* out) {
  float d[64], e[64];
  ptx::warpgroup_fence();
  ptx::multiply_tiles<false, false>(d, a, b, keep, half_t()), ptx::warpgroup_commit();
  ptx::multiply_tiles<false, false>(e, a, b, 1, half_t()), ptx::warpgroup_commit();
  ptx::warpgroup_wait<1>();
  for (int i = 0; i < 64; i++) out[threadIdx.x * 64 + i] = d[i];
  ptx::warpgroup_finish(e);
  for (int i = 0; i < 64; i++) out[threadIdx.x * 64 + i] += e[i];
}
template <typename T, int N> __device__ void multiply_registers(const uint4* a, uint64_t b,
                                                                float* out) {
  float d[N];
  for (int i = 0; i < N; i++) d[i] = out[i];
  const uint4 x = a[threadIdx.x];
  uint32_t left[1][4] = {{x.x, x.y, x.z, x.w}};
  ptx::warpgroup_fence();
  ptx::add_product<true>(d, left[0], b, T()), ptx::warpgroup_commit();
  ptx::warpgroup_finish(d), ptx::warpgroup_keep(left);
  for (int i = 0; i < N; i++) out[threadIdx.x * N + i] = d[i];
}
PROBE half_registers(const uint4* a, uint64_t b, float* out) {
  multiply_registers<half_t, 32>(a, b, out);
}
PROBE bfloat16_registers(const uint4* a, uint64_t b, float* out) {
  multiply_registers<bfloat16_t, 64>(a, b, out);
}
#endif
"""
NARROW = r"LDG\.E (R\d+),.*F2FP\.{}\.F32\.PACK_AB (R\d+), RZ, \1 .*STG\.E\.U16 .*, \2 ;"
PAIR = r"LDG\.E\.64 R(\d+),.*PACK_AB R\d+, R(\d+), R\1\b"
MATRICES = r"LDSM\.16\.{}88\.4 (R\d+), .*STG\.E\.128 .*, \1 ;"
# The operands of a product by the loads that they come from: the first and the last of 16 bytes.
PRODUCT = (
    r"(?=.*LDG\.E\.64 (R\d+),)(?=.*?LDG\.E\.128 (R\d+),)(?=.*LDG\.E\.128 (R\d+),)"
    r".*{} (R\d+), \2, \1, \3 .*STG\.E\.128 .*, \4 ;"
)
# The left factor as it was loaded; the sums are added to.
REGISTERS = (
    r"(?=.*LDG\.E\.128 (R\d+),).*WARPGROUP\.ARRIVE ;.*HGMMA\.{} (R\d+), \1, gdesc\[UR\d+\]\.tnspB,"
    r" \2, gsb0 ;.*DEPBAR\.LE gsb0, 0x0 ;.*STG\.E \S+, \2 ;"
)
OLD = "sm_75"  # without conversions to bfloat16
AMPERE = "sm_80"  # with smaller products of float64
FACTS = {  # by probe: what its machine code must match, in the order of instructions
    # The bytes that are left out are the lowest bits of the address; a predicate tells of none.
    "zero_fill": r"IADD3 \S+, -R(\d+)\S*, 0x10, .*LOP3\.LUT \S+ \S+ 0xf,"
    r".*LDGSTS\.E\.BYPASS\.128\.ZFILL \[R\d+\], .*, P\d",
    # Half of the last digit is added, but to no infinity or NaN, before the rest is cut off.
    "tf32": r"\|R\d+\|, \+INF.*IADD.*LOP3\.LUT \S+ \S+ 0xffffe000",
    "half": NARROW.format("F16"),
    "bfloat16": NARROW.format("BF16"),
    f"bfloat16 of {OLD}": r"SHF\S* (R\d+), RZ, 0x10, (R\d+) .*LOP3\.LUT (R\d+), \1, 0x1, .*"
    r"IADD3 (R\d+), \2, 0x7fff, \3 .*SHF\S* (R\d+), RZ, 0x10, \4 .*SEL R\d+, \5, 0x7fff, !P",
    "words": r"LDG\.E\.128 (R\d+), .*STG\.E\.128 .*, \1 ;",
    "two_words": r"LDG\.E\.64 (R\d+), .*STG\.E\.64 .*, \1 ;",
    # The number follows what was stored before; what is loaded later is no older copy.
    "arrival": r"STG.*MEMBAR\.\S*GPU.*ATOMG\.E\.ADD\.STRONG\.GPU.*CCTL\.IVALL.*LDG",
    "half_pair": PAIR.replace("PACK_AB", r"F2FP\.F16\.F32\.PACK_AB"),
    "bfloat16_pair": PAIR.replace("PACK_AB", r"F2FP\.BF16\.F32\.PACK_AB"),
    "power": r"^(?!.*FMUL).*LDG\.E (R\d+),.*MUFU\.EX2 R\d+, \1 ;",
    "matrices": MATRICES.format("M"),
    "transposed_matrices": MATRICES.format("MT"),
    "half_product": PRODUCT.format(r"HMMA\.16816\.F32"),
    "bfloat16_product": PRODUCT.format(r"HMMA\.16816\.F32\.BF16"),
    "tf32_product": PRODUCT.format(r"HMMA\.1688\.F32\.TF32"),
    "double_product": r"LDG\.E\.128 (R\d+), .*?LDG\.E\.128 (R\d+), "
    r".*DMMA\.16x8x8 (R\d+), \1, \2, R\d+ ; STG\.E\.128 \S+ \3 ;",
    # Rows 0 to 7 and 8 to 15, of the first four of k and of the last.
    f"double_product of {AMPERE}": r"LDG\.E\.128 (R\d+), .*?LDG\.E\.128 (R\d+), "
    r".*LDG\.E\.128 (R\d+), .*DMMA\.884 (R\d+), \2, \1(\.reuse)?, \4 ; "
    r"DMMA\.884 (R\d+), (R\d+), \1, \6 ; DMMA\.884 \4, \3, (?!\1\b)(R\d+)(\.reuse)?, \4 ; "
    r"DMMA\.884 \6, (?!\7\b)R\d+, \8, \6 ;",
    # Barriers are seen by copies after a fence of their own, and a wait tries again.
    "barrier": r"SYNCS\.EXCH.*MEMBAR.*FENCE\.VIEW\.ASYNC.*SYNCS\.ARRIVE"
    r".*(\.L_x_\d+):[^:]*TRYWAIT (P\d), .*@!\2 BRA `\(\1\) ;",
    "two_copies": r"(LDGSTS\S* .*LDGDEPBAR ;.*){2}DEPBAR\.LE SB0, 0x1 ;",
    # Neighbouring registers: the place in shared memory, the barrier, and three coordinates.
    "copied_tile": r"(?=.*ULDC\.64 UR10, c\[0x0\]\[0x2c0\] ;)"
    r"(?=.*ULDC\.64 UR12, c\[0x0\]\[0x2c8\] ;)"
    r".* (R\d+), RZ, RZ, UR13 ;.*SYNCS\.ARRIVE\.TRANS64 RZ, \[UR9\], \1 ;.*UTMALDG\.3D \[UR8\],",
    "stored_matrices": r"LDG\.E\.128 (R\d+), .*STSM\.16\.M88\.4 \[R\d+\], \1 ;"
    r".*FENCE\.VIEW\.ASYNC\.S ;.*BAR\.SYNC",
    # The place in shared memory and three coordinates, a group each; all but one are waited for.
    "stored_tile": r"(?=.*ULDC\.64 UR8, c\[0x0\]\[0x2c0\] ;.*ULDC UR15, c\[0x0\]\[0x2c8\] ;)"
    r"(?=.*UMOV UR13, UR8 ;.*UMOV UR14, UR9 ;)"
    r".*(UTMASTG\.3D \[UR1[26]\], \[UR4\] ;.*UTMACMDFLUSH ;.*){2}DEPBAR\.LE SB0, 0x1 ;",
    # The bits of the blocks of a cluster are beside the place, the barrier and the coordinates.
    "in_cluster": r"(?=.*ULDC\.64 UR10, c\[0x0\]\[0x2c0\] ;)(?=.*ULDC UR12, c\[0x0\]\[0x2c8\] ;)"
    r".*S2R (R\d+), SR_CgaCtaId ;.*STG\.E \S+, \1 ;.*MEMBAR\.ALL\.GPU ;.*UCGABAR_ARV ;"
    r".*UCGABAR_WAIT ;.*UMOV UR4, 0x30000 ;.*UTMALDG\.3D\.MULTICAST \[UR8\], \[UR6\], UR4 ;",
    # It does not wait for global memory, since it is in the loop of products.
    "arrival_in": r"^(?!.*MEMBAR\.ALL\.GPU).*ULDC (UR\d+), c\[0x0\]\[0x210\] ;"
    r".*UPRMT (UR\d+), \1, 0x654, UR\d+ ;.*SYNCS\.ARRIVE\.TRANS64\.RED\.A1T0 RZ, \[\2\], RZ ;",
    # The place in the other block, and the word, are neighbours among the arguments.
    "word_in": r"LDC\.64 R(\d+), c\[0x0\]\[0x210\] ;.*VIADD (R\d+), R\d+, 0x4 ;"
    r".* PRMT (R\d+), R\1, 0x654, \2 ;.*ST\.E \[R\d+\], R(?!\1)\d+ ;",
    "group_products": r"UISETP\.NE\S* (UP\d), .*HGMMA\S* (R\d+), gdesc\[UR\d+\], \2, \1, gsb0 ;"
    r".*HGMMA.*DEPBAR\.LE gsb0, 0x1 ;",
    "half_registers": REGISTERS.format(r"64x64x16\.F32"),
    "bfloat16_registers": REGISTERS.format(r"64x128x16\.F32\.BF16"),
}
PLANTED = [  # a probe, and the text that is wrong
    ("zero_fill", ", 16, %2;", ", 16;"),
    ("tf32", "cvt.rna.tf32.f32", "mov.b32"),
    ("half", "cvt.rn.f16.f32", "cvt.rz.f16.f32"),
    ("bfloat16", "cvt.rn.bf16.f32", "cvt.rz.bf16.f32"),
    (f"bfloat16 of {OLD}", "(x + 0x7fff + (x >> 16 & 1)) >> 16", "(x + 0x8000) >> 16"),
    ("words", "{%1,%2,%3,%4};", "{%1,%3,%2,%4};"),
    ("two_words", "v2.b32 [%0], {%1,%2};", "v2.b32 [%0], {%2,%1};"),
    ("arrival", "atom.acq_rel.gpu", "atom.relaxed.gpu"),
    ("arrival", "atom.acq_rel.gpu", "atom.acq_rel.cta"),
    ("half_pair", "cvt.rn.f16x2.f32 %0, %1, %2;", "cvt.rn.f16x2.f32 %0, %2, %1;"),
    ("bfloat16_pair", "cvt.rn.bf16x2.f32 %0, %1, %2;", "cvt.rn.bf16x2.f32 %0, %2, %1;"),
    ("power", "ex2.approx.ftz.f32", "ex2.approx.f32"),
    ("matrices", "m8n8.x4.shared.b16 {%0,%1,%2,%3}", "m8n8.x4.shared.b16 {%1,%0,%2,%3}"),
    ("transposed_matrices", "x4.trans.shared.b16", "x4.shared.b16"),
    ("half_product", "{%8,%9}, {%0", "{%9,%8}, {%0"),
    ("bfloat16_product", "{%4,%5,%6,%7}", "{%4,%6,%5,%7}"),
    ("tf32_product", "{%4,%5,%6,%7}", "{%5,%4,%6,%7}"),
    ("double_product", '"d"(a[0]), "d"(a[1])', '"d"(a[1]), "d"(a[0])'),
    ("double_product", '"d"(b0), "d"(b1)', '"d"(b1), "d"(b0)'),
    (f"double_product of {AMPERE}", "i < 2 ? b0 : b1", "i % 2 ? b1 : b0"),
    (f"double_product of {AMPERE}", '"+d"(d[i % 2 * 2])', '"+d"(d[i / 2 * 2])'),
    ("barrier", "@!over bra AGAIN_%=;", ""),
    ("barrier", "fence.proxy.async.shared::cta;", ""),
    ("two_copies", "cp.async.commit_group;", ""),
    ("two_copies", "wait_group %0;", "wait_group 2;"),
    ("copied_tile", "{%3, %4, %5}", "{%4, %3, %5}"),
    ("copied_tile", "arrive.expect_tx.shared::cta.b64 _,", "expect_tx.relaxed.cta.shared::cta.b64"),
    ("stored_matrices", '[%0], {%1,%2,%3,%4};" ::"r"(', '[%0], {%2,%1,%3,%4};" ::"r"('),
    (
        "stored_matrices",
        "stmatrix.sync.aligned.m8n8.x4.shared",
        "stmatrix.sync.aligned.m8n8.x4.trans.shared",
    ),
    ("stored_matrices", 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");', ""),
    ("stored_tile", "{%2, %3, %4}", "{%3, %2, %4}"),
    ("stored_tile", 'asm volatile("cp.async.bulk.commit_group;" ::: "memory");', ""),
    ("stored_tile", "cp.async.bulk.wait_group.read %0;", "cp.async.bulk.wait_group.read 0;"),
    ("in_cluster", "(1 << BLOCKS) - 1", "BLOCKS"),
    (
        "in_cluster",
        ".multicast::cluster [%0], [%1, {%3, %4, %5}]",
        ".multicast::cluster [%0], [%1, {%4, %3, %5}]",
    ),
    (
        "in_cluster",
        "barrier.cluster.arrive.release;\\nbarrier.cluster.wait.acquire;",
        "barrier.cluster.arrive.release;",
    ),
    ("in_cluster", "barrier.cluster.arrive.release;", "barrier.cluster.arrive.relaxed;"),
    ("in_cluster", "%%cluster_ctarank", "%%cluster_nctarank"),
    (
        "arrival_in",
        "mbarrier.arrive.shared::cluster",
        "mbarrier.arrive.release.cluster.shared::cluster",
    ),
    ("arrival_in", "mapa.shared::cluster.u32 place, %0, %1;", "mov.b32 place, %0;"),
    ("word_in", 'place, %0, %1;\\n"\n      "st.shared', 'place, %0, %2;\\n"\n      "st.shared'),
    ("word_in", "st.shared::cluster.b32 [place], %2;", "st.shared::cluster.b32 [place], %1;"),
    ("word_in", "st.shared::cluster.b32 [place], %2;", "st.shared::cluster.b16 [place], 0;"),
    ("group_products", "setp.ne.b32 p,", "setp.eq.b32 p,"),
    ("group_products", "wgmma.wait_group.sync.aligned %0", "wgmma.wait_group.sync.aligned 2"),
    ("half_registers", "{%32,%33,%34,%35}", "{%32,%34,%33,%35}"),
    ("half_registers", "%36, p, 1, 1, %37", "%36, p, 1, 1, 0"),
    ("bfloat16_registers", "{%64,%65,%66,%67}", "{%65,%64,%66,%67}"),
    ("bfloat16_registers", "setp.eq.b32 p, 0, 0;", "setp.eq.b32 p, 0, 1;"),
]


def machine_code(header: str) -> dict[str, str]:
    """The instructions of each probe, in one line."""
    codes = {}
    for arch, of in ((ARCH, ""), (OLD, f" of {OLD}"), (AMPERE, f" of {AMPERE}")):
        options = [f"-arch={arch}", *compiler.BASE_OPTIONS]
        code, _, log = nvrtc().compile("probes.cu", PROBES, {"ptx.cuh": header}, options, [])
        for name, text in disassembled(compiler.Cubin(code, {}, log)).items():
            codes[name + of] = " ".join(re.sub(r"/\*[0-9a-fx]+\*/", "", text).split())
    return codes


@pytest.fixture(scope="module", autouse=True)
def installed_nvrtc() -> None:
    need_nvrtc()


def test_each_primitive_is_the_machine_code_that_it_stands_for() -> None:
    codes = machine_code(sources.read_source("ptx.cuh"))
    for probe, fact in FACTS.items():
        assert re.search(fact, codes[probe]), f"{probe}: {codes[probe]}"


@pytest.mark.kernels_full
@pytest.mark.parametrize(("probe", "right", "wrong"), PLANTED)
def test_a_wrong_text_is_found(probe: str, right: str, wrong: str) -> None:
    header = sources.read_source("ptx.cuh")
    assert right in header
    assert not re.search(FACTS[probe], machine_code(header.replace(right, wrong))[probe])
