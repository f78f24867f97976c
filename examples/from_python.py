"""The same run as `fedveca run digits-case3 rounds=20`, with full control: the round generator in a loop."""

from fedveca import Experiment, build, federate
from fedveca.tasks.metrics import evaluate_rows

experiment = Experiment(data="digits", model="mlp", partition="case3", rounds=20, batch=32, lr=0.05)
parts = build(experiment)
w = parts.state.w
for state, trace in federate(parts.algorithm, parts.cohort, parts.state, experiment.rounds):
    w = state.w
    print(trace["round"] + 1, trace["tau"], f"F(w_k) = {trace['train_loss']:.4f}")
x, y = parts.data.x_test, parts.data.y_test
found = evaluate_rows(parts.problem, w, [(x, y)])
print(f"test accuracy {100 * found['accuracy']:.1f} %")
