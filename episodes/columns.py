"""The names of batch columns, declared once. They are the ones that RLlib uses."""

from __future__ import annotations

from typing import Final

DEFAULT_MODULE_ID: Final = "default_policy"
DEFAULT_AGENT_ID: Final = "default_agent"


class Columns:
    """Column names of train and inference batches.

    >>> Columns.NEXT_OBS
    'new_obs'
    """

    OBS: Final = "obs"
    NEXT_OBS: Final = "new_obs"
    ACTIONS: Final = "actions"
    ACTIONS_FOR_ENV: Final = "actions_for_env"
    REWARDS: Final = "rewards"
    TERMINATEDS: Final = "terminateds"
    TRUNCATEDS: Final = "truncateds"
    INFOS: Final = "infos"

    EPS_ID: Final = "eps_id"
    AGENT_ID: Final = "agent_id"
    MODULE_ID: Final = "module_id"
    T: Final = "t"
    IS_FIRST: Final = "is_first"
    POLICY_VERSION: Final = "policy_version"
    POLICY_AGE: Final = "policy_age"

    ACTION_DIST_INPUTS: Final = "action_dist_inputs"
    ACTION_LOGP: Final = "action_logp"
    ACTION_PROB: Final = "action_prob"
    VF_PREDS: Final = "vf_preds"
    STATE_IN: Final = "state_in"
    STATE_OUT: Final = "state_out"
    NEXT_STATE_IN: Final = "next_state_in"
    NEXT_STATE_OUT: Final = "next_state_out"
    EMBEDDINGS: Final = "embeddings"

    ADVANTAGES: Final = "advantages"
    VALUE_TARGETS: Final = "value_targets"
    VALUES_BOOTSTRAPPED: Final = "values_bootstrapped"
    INTRINSIC_REWARDS: Final = "intrinsic_rewards"
    RETURNS_TO_GO: Final = "returns_to_go"
    LOSS_MASK: Final = "loss_mask"
    SEQ_LENS: Final = "seq_lens"
    WEIGHTS: Final = "weights"
    N_STEP: Final = "n_step"


TRANSITION_KEYS = (
    Columns.OBS,
    Columns.NEXT_OBS,
    Columns.ACTIONS,
    Columns.REWARDS,
    Columns.TERMINATEDS,
    Columns.TRUNCATEDS,
)
"""The columns of a draw of steps when no keys are asked for."""
