"""Lower bounds per workload phase, in RPCs (compounds). Tried on nfs-ganesha 4.3 and knfsd 6.1:
one compound may hold a whole path, OPEN+READ+CLOSE, OPEN(create)+WRITE+SETATTR+CLOSE, and 9 such files (50 operations).

demand  : no guess about the future. One compound per first touch (chain lookup + the operation itself);
          a directory with several questions is answered by one READDIR with attributes and handles;
          writes are on the server at close (close-to-open), so one compound per file written.
batch   : everything that is known may be combined: prefetch of small files per directory, write-back under
          a lease, about 9 files or 1 MB per compound. What dies before it is written costs nothing.
warm    : with valid leases (delegations on files and directories) every repeated phase costs 0.
target  : what hither should reach: 1.25 x demand, or what TARGETS says. Without a delegation, close-to-open
          itself costs a round trip per open, so the targets of repeated opens are met with `nocto` or a delegation.
"""

def bounds():
    b = {}

    def put(w, ph, demand, batch, why):
        b[(w, ph)] = (demand, batch, why)

    put("opendepth", "open.cold", 1, 1, "per file: SEQUENCE PUTFH LOOKUP*(d-1) OPEN GETATTR CLOSE")
    put("opendepth", "stat.cold", 1, 1, "per file: SEQUENCE PUTFH LOOKUP*d GETATTR")
    put("opendepth", "read1k.cold", 1, 1, "per file: ... OPEN GETATTR READ CLOSE")
    for t in ("warm0", "warm4s", "warm65s"):
        for o in ("open", "stat", "read1k"):
            put("opendepth", f"{o}.{t}", 0, 0, "lease")
    put("pageopen", "cold", 240, 80, "40 READDIR answer stats and misses + 200 OPEN+READ+CLOSE; batch: 40 READDIR + 40 x 5 files")
    for t in ("warm0", "warm4s", "warm65s"):
        put("pageopen", t, 0, 0, "lease")
    put("pageopen", "remount", 40, 1, "disk cache holds names, attributes, data: one revalidation per directory; batch: 1-2 compounds of GETATTR(change)")
    put("profiles", "small.cold", 10, 1, "10 x 16 KB")
    put("profiles", "large.cold", 3, 2, "one compound per file: 1 MB + 440 KB + 188 KB; batch: 1.6 MB")
    put("profiles", "interspersed.cold", 13, 2, "13 files, 1.8 MB")
    for k in ("small", "large", "interspersed"):
        put("profiles", f"{k}.warm0", 0, 0, "lease")
        put("profiles", f"{k}.nopagecache", 0, 0, "disk cache and lease")
        put("profiles", f"{k}.remount", {"small": 10, "large": 3, "interspersed": 13}[k], 1, "one GETATTR(change) per file; batch: one compound")
    put("mab", "1.mkdir", 6, 1, "6 CREATE")
    put("mab", "2.copy", 75, 12, "5 READDIR + one OPEN+OPEN+COPY+CLOSE+CLOSE per file (v4.2), or 75 + 70 creates through the client")
    put("mab", "3.stat", 0, 0, "the client made all of it")
    put("mab", "4.grep", 70, 1, "COPY left the data on the server: 70 files; batch: 0.2 MB; 0 if the client copied through its cache")
    put("mab", "5.compile", 41, 5, "40 objects + 1 archive, one compound each; sources and misses are known")
    put("badros", "t01_mkdirs", 21, 1, "21 CREATE")
    put("badros", "t02_copy", 76, 13, "5 READDIR + 71 files")
    put("badros", "t03_stat", 0, 0, "the client made all of it")
    put("badros", "t04_grep", 71, 1, "as mab 4")
    put("badros", "t05_build", 13, 2, "12 objects + 1 archive")
    put("badros", "t06_untar", 401, 61, "380 files + 21 directories; batch: a directory and 9 of its files per compound")
    put("badros", "t07_ls", 21, 3, "21 READDIR with attributes, the other three runs 0; batch: by level of the tree")
    put("badros", "t08_read_big", 6, 6, "6.1 MB in 1 MB READs, in flight together: 2 round trips")
    put("badros", "t09a_read_big_again", 0, 0, "page cache and lease")
    put("badros", "t09b_read_big_again_nopagecache", 0, 0, "disk cache and lease")
    put("badros", "t10_copy_big", 1, 1, "OPEN OPEN COPY CLOSE CLOSE")
    put("badros", "t11_random_reads", 5, 5, "4.3 MB fetched whole")
    put("badros", "t12_small_writes", 1, 1, "OPEN WRITE CLOSE")
    put("badros", "t13_small_rw", 1, 1, "OPEN WRITE CLOSE")
    put("postmark", "postmark", 6000, 0, "2000 creates + ~2000 appends + 2000 deletes; write-back: files die before they are flushed")
    put("meta", "untar", 1111, 211, "1000 files + 111 directories; batch: a directory and 9 of its files per compound (50 operations)")
    put("meta", "ls-lR.warm", 0, 0, "the client made all of it")
    put("meta", "ls-lR.cold", 111, 3, "111 READDIR with attributes; batch: by level of the tree")
    put("meta", "ls-lR.again", 0, 0, "lease")
    put("meta", "grep-r.cold", 1111, 117, "111 READDIR + 1000 reads; batch: 6 MB in 1 MB compounds + READDIR")
    put("meta", "grep-r.again", 0, 0, "lease")
    put("meta", "git-clone", 1180, 120, "1000 files + ~150 directories + ~30 files in .git")
    put("meta", "git-status.warm", 1, 1, "index rewrite")
    put("meta", "git-status.cold", 115, 5, "111 READDIR + index, config, HEAD, refs")
    put("meta", "git-status.again", 0, 0, "lease (the index.lock create+remove: 2 if not elided)")
    put("meta", "rm-rf", 2267, 240, "one REMOVE each; batch: all names of a directory in one compound")
    put("tree", "ls-lR.cold", 111, 3, "111 READDIR with attributes; batch: by level of the tree")
    put("tree", "find.cold", 111, 3, "as ls -lR")
    put("tree", "du.cold", 111, 3, "as ls -lR")
    put("tree", "grep-r.cold", 1111, 117, "111 READDIR + 1000 reads; batch: 6 MB in 1 MB compounds + READDIR")
    put("tree", "git-status.cold", 115, 5, "111 READDIR + index, config, HEAD, refs")
    for c in ("ls-lR", "find", "du", "grep-r", "git-status"):
        put("tree", f"{c}.again", 0, 0, "lease, or within the timeouts")
        put("tree", f"{c}.expired", 111, 5, "an unchanged directory proves all its names: one GETATTR each; batch: 24 per compound of 50 operations")
    put("bigtree", "find.cold", 1111, 4, "1111 READDIR with attributes; batch: by level of the tree")
    put("bigtree", "du.cold", 1111, 4, "as find")
    put("bigtree", "git-status.cold", 1115, 6, "1111 READDIR + index, config, HEAD, refs")
    for c in ("find", "du", "git-status"):
        put("bigtree", f"{c}.again", 0, 0, "lease, or within the timeouts")
        put("bigtree", f"{c}.expired", 1111, 47, "one GETATTR per directory; batch: 24 per compound")
    put("python", "start.cold", 133, 4, "READDIR of lib, first, second, 10 packages and 10 __pycache__ answers stats and misses + 110 reads; batch: by level, 1 MB of files")
    put("python", "start.again", 0, 0, "lease, or within the timeouts")
    put("python", "start.expired", 23, 1, "one GETATTR per directory; batch: 24 per compound")
    put("bigdir", "ls-l.cold", 20, 20, "100,000 entries of about 200 bytes with attributes, in replies of 1 MiB")
    put("bigdir", "ls-l.again", 0, 0, "lease, or within the timeouts")
    put("bigdir", "ls-l.expired", 1, 1, "one GETATTR: the directory did not change")
    return b


# Where something else than 1.25 x demand is wanted.
TARGETS = {("pageopen", "cold"): 100,           # the small files of a directory come together
           ("pageopen", "warm65s"): 3,          # all expired objects of a burst asked for together
           **{("opendepth", f"{o}.{t}"): 1.25 for o in ("open", "stat", "read1k") for t in ("warm4s", "warm65s")}}
# The same when nothing is guessed.
NO_PREFETCH = {("pageopen", "cold"): 240}

KNOWN = bounds()


def of(workload, phase, opts=""):
    """What is known of a phase with these mount options: its bounds and target, in RPCs; empty when nothing is."""
    at = (workload, phase)
    if at not in KNOWN:
        return {}
    demand, batch, _ = KNOWN[at]
    target = TARGETS.get(at, 1.25 * demand)
    if "prefetch=off" in opts.split(","):
        target = NO_PREFETCH.get(at, target)
    return {"demand": demand, "batch": batch, "target": target}
