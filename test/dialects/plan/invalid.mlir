// RUN: frustum-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// CHECK: expected an engine (matrix, vector, scalar, host), found 'vectr'; did you mean 'vector'?
fplan.plan @net for "edge" compute a on vectr

// -----
// CHECK: 10:3: error: compute b, a: a is computed twice; recompute it under another name
fplan.plan @net for "edge" {
  compute a
  compute b, a
}

// -----
// CHECK: a plan has one node, found 2; put them in fplan.sequence
"fplan.plan"() <{network = @net, target = "edge"}> ({
  "fplan.compute"() <{layers = ["a"]}> : () -> ()
  "fplan.compute"() <{layers = ["b"]}> : () -> ()
}) : () -> ()

// -----
// CHECK: a node is fplan.sequence, fplan.for or fplan.compute, found test.op
"fplan.plan"() <{network = @net, target = "edge"}> ({
  "test.op"() : () -> ()
}) : () -> ()

// -----
// CHECK: for x: its region has one fplan.sequence and nothing else
"fplan.plan"() <{network = @net, target = "edge"}> ({
  "fplan.for"() <{axis = "x", edges = array<i64: 0, 4>}> ({
    "fplan.compute"() <{layers = ["a"]}> : () -> ()
  }) : () -> ()
}) : () -> ()

// -----
// CHECK: 'turning' is none of rolling, recomputed, exchanged
"fplan.plan"() <{network = @net, target = "edge"}> ({
  "fplan.for"() <{axis = "x", edges = array<i64: 0, 4>, halo = "turning"}> ({
    "fplan.sequence"() ({
      "fplan.compute"() <{layers = ["a"]}> : () -> ()
    }) : () -> ()
  }) : () -> ()
}) : () -> ()

// -----
// CHECK: for x: ranges rise from 0 to the extent of the axis, found [0, 4, 4]
"fplan.plan"() <{network = @net, target = "edge"}> ({
  "fplan.for"() <{axis = "x", edges = array<i64: 0, 4, 4>}> ({
    "fplan.sequence"() ({
      "fplan.compute"() <{layers = ["a"]}> : () -> ()
    }) : () -> ()
  }) : () -> ()
}) : () -> ()

// -----
// CHECK: resident w until b: no child of its sequence has that layer
"fplan.plan"() <{network = @net, target = "edge"}> ({
  "fplan.sequence"() ({
    "fplan.resident"() <{tensor = "w", until = "b"}> : () -> ()
    "fplan.compute"() <{layers = ["a"]}> : () -> ()
  }) : () -> ()
}) : () -> ()

// -----
// CHECK: fplan.resident: a part has an axis, a start and a stop
"fplan.plan"() <{network = @net, target = "edge"}> ({
  "fplan.sequence"() ({
    "fplan.resident"() <{tensor = "w", axis = "x"}> : () -> ()
    "fplan.compute"() <{layers = ["a"]}> : () -> ()
  }) : () -> ()
}) : () -> ()

// -----
// CHECK: fplan.compute: as many sums as elements
"fplan.plan"() <{network = @net, target = "edge"}> ({
  "fplan.compute"() <{layers = ["a"], sums = ["a"]}> : () -> ()
}) : () -> ()

// -----
// CHECK: fplan.compute has no attributes, found note; put them on fplan.plan
"fplan.plan"() <{network = @net, target = "edge"}> ({
  "fplan.compute"() <{layers = ["a"]}> {note = 1 : i64} : () -> ()
}) : () -> ()
