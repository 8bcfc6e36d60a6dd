# %% [markdown]
# # 09 · Kernels
#
# **Claim.** A need not exist in memory at all: a kernel makes its signs where it uses them.
#
# **You will be able to**
# - write a counter hash that gives the same bits in torch and in Triton;
# - write a tiled Triton kernel that projects activations with signs made on the spot, for any shape;
# - count the bytes a kernel must move and say how fast it could be at best;
# - recognise a kernel that silently skips part of a matrix.
#
# **Before you start.** [03](03_sketching.ipynb) for $X A^\top$, [05](05_row_adam_and_merging.ipynb) for the
# merge $W \leftarrow W - UA$. No GPU is needed: the kernels run in Triton's interpreter on the CPU. About 60
# minutes; the notebook itself runs in half a minute.

# %%
import os

os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton

import torch

from logra_lab.lab import bench_costs, checks, kernel_bytes, kernel_figures, triton_play, widgets
from logra_lab.lab.roadmap import roadmap
from logra_lab.lab.triton_play import tl, triton
from logra_lab.memory.presets import shape_of
from logra_lab.method.projection import projection_key, sign_words, signs

print(
    "Triton's interpreter is on."
    if kernel_bytes.interpreter_on()
    else "No Triton here: torch stands in below."
)
roadmap(9)

# %% [markdown]
# ## What A would cost
#
# Each projection group (layers that read the same input share one $A$) needs a matrix of $r \times k$ signs,
# drawn anew after every update. How much memory is that for a 7B model, kept in bf16?

# %%
shape = shape_of("7B")
columns = {matrix.group: matrix.k for matrix in shape.targets}
for rank in (64, 256):
    kept = shape.layers * sum(rank * k * 2 for k in columns.values())
    print(
        f"rank {rank:3d}: {len(columns)} groups in each of {shape.layers} layers, {kept / 2**20:.0f} MiB of signs"
    )
print("as keys: 8 bytes per group")

# %% [markdown]
# Eight bytes are enough if A is a *function*: from a key, a row and a column to a sign. Then nobody stores it, nobody
# sends it, and a run that resumes next year draws the same one.
#
# ## A hash of a counter
#
# One 32-bit word holds the signs of 32 neighbouring columns. Word $w$ of row $i$ is
#
# $$\text{word}(i, w) = \text{fmix}\big(\text{fmix}(k_0 + w) \oplus \text{fmix}(k_1 + i)\big),$$
#
# and the sign of $A_{ij}$ is + where bit $j \bmod 32$ of word$(i, \lfloor j/32 \rfloor)$ is 1. The mixer is
# MurmurHash3's finaliser. It only shifts, xors and multiplies whole numbers, so nothing is rounded and every
# device agrees:
#
# 1. `x ^ (x >> 16)`
# 2. times `0x85EBCA6B`, keep 32 bits
# 3. `x ^ (x >> 13)`
# 4. times `0xC2B2AE35`, keep 32 bits
# 5. `x ^ (x >> 16)`
#
# ## Exercise 1a · The hash in torch
# *Difficulty 1 of 5 · 6 minutes*
#
# torch has no handy unsigned 32-bit numbers, so the words live in int64. There a product does not wrap at 32 bits:
# you have to cut it.

# %%
MASK = 0xFFFFFFFF


def fmix32(x):
    """Mix 32-bit words held in an int64 tensor of any shape."""
    # SOLUTION
    x = x ^ (x >> 16)
    x = (x * 0x85EBCA6B) & MASK
    x = x ^ (x >> 13)
    x = (x * 0xC2B2AE35) & MASK
    return x ^ (x >> 16)
    # END


# %% tags=["nbval-check-output"]
fmix32 = checks.check("fmix32", fmix32)

# %% [markdown] tags=["hint"]
# Five lines, as listed. `& MASK` keeps the lowest 32 bits. (Products overflow int64 too; that does no harm, since
# overflow drops only high bits, and the mask wants the low ones.)

# %% [markdown]
# ## Exercise 1b · The same in Triton
# *Difficulty 2 of 5 · 6 minutes*
#
# In Triton `x` is a block of uint32, and uint32 wraps by itself: no mask. The check runs your function in the
# interpreter and compares with the *same* expected words as above: same bits, or it is wrong.


# %%
@triton.jit
def mix(x):
    """Mix a block of uint32 words."""
    # SOLUTION
    x = x ^ (x >> 16)
    x = x * 0x85EBCA6B
    x = x ^ (x >> 13)
    x = x * 0xC2B2AE35
    return x ^ (x >> 16)
    # END


# %%
mixed = checks.check("fmix32", triton_play.word_function(mix))

# %% [markdown] tags=["hint"]
# Your lines from 1a without `& MASK`.

# %% [markdown]
# Your torch hash now draws a corner of A. The last line compares it with what the optimizer uses.

# %%
key = projection_key(seed=42, update=0, group="layers.0.self_attn.q_proj")
rows, words = torch.arange(24), torch.arange(4)
hashed = fmix32(fmix32(words + key[0] & MASK)[None, :] ^ fmix32(rows + key[1] & MASK)[:, None])  # [r, words]
bits = (hashed[:, :, None] >> torch.arange(32)) & 1  # [r, words, 32]
corner = (2 * bits - 1).flatten(1)  # [r, k]
print("the same bits as the package:", torch.equal(hashed.to(torch.int32), sign_words(key, 24, 128)))
kernel_figures.bits_of(hashed, corner)

# %% [markdown]
# ## A kernel is a program per tile
#
# A Triton kernel is written for *one tile* of the result, and launched on a grid of many. `tl.program_id(0)`
# says which tile this is. Blocks of numbers are loaded through pointers: `x + t[:, None] * k + j[None, :]` is a
# block of addresses in a row-major X [T, k]. At the edge of the matrix part of a block lies outside: a **mask**
# says which part is real.
#
# A tile of signs needs no pointer at all. Here it is, from your hash:

# %%
mix = mix if triton_play.written(mix) else triton_play.reference_mix  # the lesson goes on without 1b


@triton.jit
def sign_tile(key0, key1, i, j):
    """Signs of A at rows i and columns j, as a block [columns, rows] of ±1.0."""
    columns = mix((j // 32).to(tl.uint32) + key0.to(tl.uint32))
    rows = mix(i.to(tl.uint32) + key1.to(tl.uint32))
    word = mix(columns[:, None] ^ rows[None, :])
    bit = (word >> (j % 32).to(tl.uint32)[:, None]) & 1
    return tl.where(bit == 1, 1.0, -1.0)


# %% [markdown]
# ## Exercise 2 · Project with signs made inside
# *Difficulty 4 of 5 · 20 minutes*
#
# $P = X\,\text{signs}(A)^\top$, [T, k] → [T, r]. One program makes the tile of rows `t` and ranks `i`. It walks
# along k in steps of `BLOCK_K`. In each step: load a tile of X, make the tile of signs, add their product to
# `acc`. At the end store.
#
# `tl.load(pointers, mask=…, other=0.0)` · `tl.dot(a, b)` · `tl.store(pointers, values, mask=…)`


# %%
@triton.jit
def project_kernel(
    x, p, T, k, r, key0, key1, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr
):
    """One tile [BLOCK_T, BLOCK_R] of P; x and p point to row-major X [T, k] and P [T, r]."""
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    i = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    acc = tl.zeros((BLOCK_T, BLOCK_R), tl.float32)
    # SOLUTION
    for start in range(0, k, BLOCK_K):
        j = start + tl.arange(0, BLOCK_K)
        inside = (t[:, None] < T) & (j[None, :] < k)
        tile = tl.load(x + t[:, None] * k + j[None, :], mask=inside, other=0.0)  # [BLOCK_T, BLOCK_K]
        acc += tl.dot(tile, sign_tile(key0, key1, i, j))
    tl.store(p + t[:, None] * r + i[None, :], acc, mask=(t[:, None] < T) & (i[None, :] < r))
    # STUB
    # # for start in range(0, k, BLOCK_K): the columns j of this step; load a tile of X; add tile @ signs to acc
    # # then store acc, where it lies inside P
    # END


# %%
project = checks.check("tiled_project", triton_play.projection_function(project_kernel))

# %% [markdown] tags=["hint"]
# In the loop `j = start + tl.arange(0, BLOCK_K)`. The mask of the load is `(t[:, None] < T) & (j[None, :] < k)`; with
# `other=0.0` what lies outside adds nothing, whatever its signs. The store needs its own mask, with `T` and `r`.

# %% [markdown]
# ## The control: odd shapes
#
# A kernel that is right on round shapes proves little. Yours and the package's are compared with their torch
# twins on shapes chosen to be awkward: one row, one column past a tile, one less. Whole numbers go in, so sums
# are exact and *bit for bit equal* is the test. It would fail on a wrong mask, a wrong sign, a lost tile.

# %%
shapes = [(1, 1, 1), (1, 200, 4), (65, 31, 16), (63, 129, 1), (130, 257, 64)]
if kernel_bytes.interpreter_on():
    heads = ("yours", "project", *kernel_bytes.merge_kinds())
    print("rows × columns, rank" + "".join(f"{head:>11}" for head in heads))
    for (rows, columns, rank), answers in zip(shapes, kernel_bytes.agreement(shapes, project)):
        words = ["equal" if answer else "DIFFERS" for answer in answers]
        print(f"{rows:6d} × {columns:3d}, {rank:2d}    " + "".join(f"{word:>11}" for word in words))
else:
    print("Triton is not installed here, so there is nothing to compare.")

# %% [markdown]
# ## Bytes, and the floors under time
#
# A GPU multiplies far faster than it reads. Such small products wait for memory, so what counts is the number
# of bytes. The least that can move: each input once in, each result once out. We count three things, on a CPU,
# where the bytes are as many as on a GPU:
#
# - **the floor**, from that formula;
# - **torch**, operation after operation: every one reads its inputs and writes its result;
# - **the kernel**: every address that it loads or stores, caught in the interpreter.

# %%
kernel_figures.traffic(kernel_bytes.all_traffic())

# %% [markdown]
# The kernels sit on the floor. Torch pays for every intermediate result: the hash, the bits, the signs, and for
# `split` and `stochastic` the weights passed through fp32. Two remarks, to be fair. A GPU's cache may serve
# part of what torch reads again. And a kernel asks for some addresses more than once, tile after tile; the
# cache serves those too, so each address counts once here.
#
# ## Exercise 3 · The floor in seconds
# *Difficulty 2 of 5 · 8 minutes*
#
# A kernel has to respect two floors: its bytes over the memory's **bandwidth** (bytes per second), and its
# operations over the card's **peak** (operations per second). Loading and computing overlap, so the higher of
# the two counts. For $X A^\top$ with A made inside: read X, write P, and $2\,T\,k\,r$ operations.


# %%
def floor_seconds(tokens, columns, rank, size, bandwidth, peak):
    """Least seconds for X [tokens, columns] -> P [tokens, rank]; `size` is bytes per number."""
    # SOLUTION
    moved = size * (tokens * columns + tokens * rank)
    operations = 2 * tokens * columns * rank
    return max(moved / bandwidth, operations / peak)
    # END


# %% tags=["nbval-check-output"]
floor_seconds = checks.check("floor_seconds", floor_seconds)

# %% [markdown] tags=["hint"]
# Bytes: `size` times the numbers in X and in P. A contributes none. Then `max(bytes / bandwidth, operations / peak)`.

# %% [markdown]
# Bandwidths and peaks are those of the makers' data sheets (dense bf16). Where the two floors meet lies the rank from
# which a projection stops being free.
#
# Floors predict how a cost grows, too. Below the times the picture shows a whole training step on a CPU: seconds of
# LoGRA over those of dense AdamW, the two taking turns, beside the same ratio by FLOPs and bytes.

# %%
for card in kernel_bytes.SPEEDS.values():
    at = {rank: floor_seconds(16384, 4096, rank, 2, card.bandwidth, card.peak) for rank in (64, 256, 1024)}
    meet = next(r for r in range(1, 4096) if kernel_bytes.operations_decide(16384, 4096, r, card))
    times = ", ".join(f"{1e6 * seconds:.0f} µs at rank {rank}" for rank, seconds in at.items())
    print(f"{card.name}: at least {times}; the floors meet near rank {meet}")
recorded = kernel_bytes.recorded_timings()
for row in (recorded or {}).get("rows", []):
    card = kernel_bytes.SPEEDS[row["card"]]
    least = floor_seconds(row["tokens"], row["columns"], row["rank"], 2, card.bandwidth, card.peak)
    share = f"{1e6 * row['seconds']:.0f} µs, {least / row['seconds']:.0%} of the floor's speed"
    print(f"measured on {card.name}, rank {row['rank']}: {share}")
if recorded is None:
    print("No timings from a GPU are recorded in this version: these are floors, not measurements.")
bench_costs.show_costs()

# %% [markdown]
# Rank costs little until it comes near the width. More tokens raise the ratio: AdamW's passes over weights and moments
# count for less, and what the model leaves out (norms, attention) counts for more. The wider the model, the nearer
# the two lines. More micro-batches lower it: dense training adds another whole gradient to the sum for each. In one
# pass one product in three and AdamW's passes over its moments are all there is to save.
#
# ## Play: two floors
#
# Move the rank until the operation floor overtakes. Then change the card: which way does the crossing move, and
# why does it hardly depend on k?

# %%
player = widgets.play(
    lambda **chosen: kernel_figures.floors(**chosen, recorded=recorded), **kernel_figures.floor_controls()
)

# %% [markdown]
# ## Find the bug
#
# The merge $W \leftarrow W - UA$ passed its test on a 128 × 256 matrix and was shipped. No error, no NaN, the
# reward climbs. Months later somebody compares the weights with the formula, on a matrix of 200 × 300.


# %%
def suspect_grid(rows, columns, block_rows, block_columns):
    """How many programs to launch: down and across."""
    return rows // block_rows, columns // block_columns


def error_of(grid, rows, columns):
    """|merged − expected| [rows, columns] with the package's merge kernel on this grid."""
    random = torch.Generator().manual_seed(0)
    weight, factor = torch.randn(rows, columns, generator=random), torch.randn(rows, 16, generator=random)
    expected = weight - factor @ signs(key, 16, columns) / 4  # A = signs / √16
    return (triton_play.merge_on_grid(weight, factor, key, grid) - expected).abs()


print(f"128 × 256: largest error {error_of(suspect_grid, 128, 256).max():.0e}")
kernel_figures.missed(error_of(suspect_grid, 200, 300), triton_play.BLOCK_D, triton_play.BLOCK_C)

# %% [markdown]
# The blue part was never trained. Real matrices are mostly round, which is how such a bug lives long: until one
# is sharded and a device is left with an odd number of rows. Training still works, since the rest of the
# network makes up for it.
#
# ## Exercise 4 · A grid that covers
# *Difficulty 1 of 5 · 5 minutes*


# %%
def merge_grid(rows, columns, block_rows, block_columns):
    """How many programs to launch: down and across. Each merges a tile, masked at the edges."""
    # SOLUTION
    return triton.cdiv(rows, block_rows), triton.cdiv(columns, block_columns)
    # STUB
    # return rows // block_rows, columns // block_columns
    # END


# %%
merge_grid = checks.check("merge_grid", merge_grid)
for rows, columns in ((128, 256), (200, 300), (65, 129), (3, 5)):
    print(f"{rows} × {columns}: largest error {error_of(merge_grid, rows, columns).max():.0e}")

# %% [markdown] tags=["hint"]
# Round up. `-(-a // b)`, `(a + b - 1) // b`, `math.ceil(a / b)` and `triton.cdiv(a, b)` all do. Adding 1 to the
# rounded-down number launches idle programs where the tiles fit exactly.

# %% [markdown]
# ## Limits
#
# - **Interpreter times mean nothing.** It runs one program after the other in NumPy. It shows that a kernel is right.
# - **A right kernel need not be a fast one.** Floors are lower bounds; the share a kernel reaches must be measured
#   on a GPU.
# - **Signs are cheap, not free.** Each block of rows makes its signs again: three integer operations per sign, and a
#   hash per 32.
# - **Bits agree, sums need not.** The signs are equal everywhere; products are summed in another order on
#   another device, and differ in the last digits.
# - The interpreter rounds to bf16 wrongly; the package rounds by bits and tests that.
#
# ## Recap
#
# 1. A is a function of a key, a row and a column; 8 bytes stand for a whole matrix.
# 2. Integer hashing has no rounding, so torch, Triton, CPU and GPU draw the same signs.
# 3. A fused kernel reads X or W once and writes once: the floor, and the kernel sits on it in bytes.
# 4. Up to a rank of a few hundred the bytes are the higher floor: the products hide behind the reading.
# 5. Test kernels on shapes that don't fit, and round grids up.
#
# **What would change our mind.** If on a real GPU a plain product with a stored A were as fast at the same
# memory, or if making signs cost more than reading them, a stored A would be the simpler choice.
#
# **Next**: [lesson 10](10_full_scale.ipynb), where all of it trains models of billions of weights.
